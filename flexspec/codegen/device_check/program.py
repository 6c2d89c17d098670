"""The parts one after the other, each within its time, whatever becomes of the others."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import torch

from flexspec.codegen.device_check.attempt import describe
from flexspec.codegen.device_check.attention_speed import attention_rows
from flexspec.codegen.device_check.engine_speed import engine_rows
from flexspec.codegen.device_check.machine import machine_facts
from flexspec.codegen.device_check.numerics.rows import numerics_rows
from flexspec.codegen.device_check.operator_overhead import overhead_rows
from flexspec.codegen.device_check.part import Context, Part, Row
from flexspec.codegen.device_check.pass_times import fits, pass_rows, release_memory
from flexspec.codegen.device_check.printing import RowPrinter
from flexspec.codegen.device_check.random_llama import RandomLlama
from flexspec.codegen.device_check.report import PartReport, Report
from flexspec.codegen.device_check.sizes import LlamaSize, Sizes

_TOTAL_S = 200.0
"""What all parts may take together: each ends what it is at when its time is over, so the whole takes somewhat longer."""
_LIMIT_S = 236.0
"""When the program ends in the midst of whatever it does."""


class _Models:
    """The one model that is in memory, made when it is first needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._llama: RandomLlama | None = None

    def of(self, size: LlamaSize) -> RandomLlama:
        """The model of a size; one of another size is given up for it."""
        if self._llama is not None and self._llama.size != size:
            self.release()
        if self._llama is None:
            self._llama = RandomLlama(size, self._device)
        return self._llama

    def release(self) -> None:
        """Give the model up."""
        self._llama = None
        release_memory(self._device)


def check_parts(sizes: Sizes, device: torch.device) -> list[Part]:
    """All parts, in an order in which each model is made once."""
    models = _Models(device)
    first, *larger = sizes.models

    def passes(size: LlamaSize) -> Callable[[Context], Iterator[Row]]:
        def rows(context: Context) -> Iterator[Row]:
            if size != first:
                models.release()
            if fits(context, size):
                yield from pass_rows(context, models.of(size))

        return rows

    return [
        Part(name="numerics", title="kernels and their references", seconds=60, rows=numerics_rows),
        Part(name="attention", title="attention of one layer", seconds=45, rows=attention_rows),
        Part(name="operators", title="custom_op and triton_op", seconds=10, rows=overhead_rows),
        Part(name=f"passes {first.name}", title=f"passes of a model of {first.name}", seconds=50, rows=passes(first)),
        Part(name="engine", title="whole engines", seconds=25, rows=lambda context: engine_rows(context, models.of(first))),
        *(Part(name=f"passes {size.name}", title=f"passes of a model of {size.name}", seconds=35, rows=passes(size)) for size in larger),
    ]


def run_check(sizes: Sizes, device: torch.device, *, path: Path, say: Callable[[str], None], began: float | None = None) -> Report:
    """Run all parts, print what they find, and write it to `path` after each.

    Args:
        sizes: of what is run.
        device: a GPU; a CPU for a dry run.
        path: of the report.
        say: prints a line.
        began: when the program was started, by `monotonic`.
    """
    began = monotonic() if began is None else began
    is_dry = device.type != "cuda"
    report = Report(date=datetime.now(UTC).isoformat(timespec="seconds"), is_dry=is_dry, machine=machine_facts(device))
    machine, versions = report.machine, report.machine["versions"]
    what = "dry run on a CPU: references in the place of kernels, no times" if is_dry else f"{machine['gpu']}, driver {machine['driver']}"
    say(f"{what}; torch {versions['torch']}, triton {versions['triton']}; {report.date}")
    parts = check_parts(sizes, device)
    with _limit(report, path, say, seconds=None if is_dry else began + _LIMIT_S - monotonic()):
        for place, part in enumerate(parts):
            found = PartReport(name=part.name)
            report.parts.append(found)
            _run(part, found, _context(sizes, device, parts[place:], began + _TOTAL_S), say)
            report.seconds = monotonic() - began
            report.write(path)
    return report


def _context(sizes: Sizes, device: torch.device, rest: Sequence[Part], end: float) -> Context:
    """For the first of the parts that are left: of the time that is left it gets its share, so what others did not need is used."""
    left = max(end - monotonic(), 0.0)
    share = rest[0].seconds / sum(part.seconds for part in rest)
    return Context(device=device, sizes=sizes, deadline=monotonic() + left * share)


def _run(part: Part, found: PartReport, context: Context, say: Callable[[str], None]) -> None:
    began = monotonic()
    say(f"\n{part.title}, up to {context.deadline - began:.0f} s" if not context.is_dry else f"\n{part.title}")
    printer = RowPrinter(say)
    found.left_out = context.left_out
    try:
        for row in part.rows(context):
            found.rows.append(row)
            printer.row(row)
    except Exception as problem:  # A part that fails, however it does, is a result, and the others are to be had all the same.
        found.error = describe(problem)
        say(f"FAILED: {found.error}")
    found.seconds = monotonic() - began
    for line in found.left_out:
        say(f"left out: {line}")
    say(f"{part.name}: {'ok' if found.ok else 'NOT OK'}, {found.seconds:.1f} s")


@contextmanager
def _limit(report: Report, path: Path, say: Callable[[str], None], *, seconds: float | None) -> Iterator[None]:
    """End the program after `seconds` with what was found so far, even if the device never answers again."""
    if seconds is None:
        yield
        return

    def end() -> None:
        report.parts[-1].error = "it had not ended when all time was over"
        report.write(path)
        say(f"\nstopped in the part {report.parts[-1].name!r}: all time was over; what was found so far is in {path}")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
