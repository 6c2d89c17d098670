"""`flexspec calibrate`: what operators and collectives take on this machine."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flexspec.cli.json_file import check_writable, write_json
from flexspec.errors import UsageError

if TYPE_CHECKING:
    from flexspec.passes.search.hardware import Hardware

_TIMEOUT_S = 120.0
_USUAL_DEVICES = 2
_SHOWN = (1, 4, 16, 64, 256)


def calibrate(
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Write the description there, and not where `--hardware local` looks for it."
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(metavar="N", show_default=False, help="Divide the cores among so many ranks; 2 by default, 1 on a single core."),
    ] = None,
) -> int:
    """Measure this machine for `flexspec search --hardware local`: operators and collectives with all ranks at work, in about two minutes.

    It should have nothing else to do meanwhile.
    """
    from flexspec.cli.launch import launch
    from flexspec.passes.search.hardware.load import local_file
    from flexspec.runtime.distributed.ranks import Ranks, world_size

    started = world_size()
    count = _count(devices, started)
    check_writable(output, "--output")
    path = output or local_file(count)
    if started == 1 and count > 1:
        return launch(["calibrate", "--devices", str(count), *(["--output", str(output)] if output else [])], count)
    from flexspec.calibration.calibrate import calibrate as run

    console = Console(stderr=True)
    ranks = Ranks(timeout_s=_TIMEOUT_S) if started > 1 else None
    content = run(ranks, tell=lambda line: console.print(line, style="dim", highlight=False))
    if ranks is not None:
        ranks.close()
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, content, "--output")
        _show(content, path)
    return 0


def _count(devices: int | None, started: int) -> int:
    """How many devices there are to be."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if devices is None:
        return started if started > 1 else min(_USUAL_DEVICES, cores)
    if not 1 <= devices <= cores:
        raise UsageError(f"--devices {devices} is not allowed: give 1 to {cores}, the cores that this process may use")
    if started not in (1, devices):
        raise UsageError(f"--devices {devices} is not allowed in a job of {started} ranks: give {started}, or start as many ranks")
    return devices


def _show(content: dict[str, Any], path: Path) -> None:
    """What was measured, in figures that can be compared with a data sheet."""
    from flexspec.passes.search.hardware.read import read_hardware

    hardware = read_hardware(path.stem, content, source=f"hardware file {str(path)!r}")
    console = Console(highlight=False)
    console.print(_operators(hardware))
    if hardware.collectives:
        console.print(_collectives(hardware))
    times = hardware.host_times
    console.print(
        f"host: {times.step_us:.0f} µs a step, {times.request_us:.0f} a request, {times.node_us:.1f} a drafted node, "
        f"{times.level_us:.0f} a pass of a draft model",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"{hardware.num_devices} x {hardware.threads} threads of {hardware.devices[0].name}: {path}", markup=False, soft_wrap=True
    )


def _operators(hardware: "Hardware") -> Table:
    from flexspec.passes.search.times import interpolated

    device = hardware.devices[0]
    table = Table(title="Reached by tokens of a pass (attention: by query rows of a KV head)")
    for name in ("operator", "dtype", "busy", ""):
        table.add_column(name)
    for tokens in _SHOWN:
        table.add_column(str(tokens), justify="right")
    for one in hardware.operators:
        unit, top, shares = "GB/s", device.bandwidth_gb_s, one.memory
        if one.kind in ("linear", "attention"):
            unit, top, shares = "GFLOP/s", 1e3 * device.tflops[one.dtype], one.compute
        reached = [f"{top * interpolated(one.tokens, shares, tokens):.0f}" for tokens in _SHOWN]
        table.add_row(one.kind, one.dtype, str(one.busy or 1), unit, *reached)
    return table


def _collectives(hardware: "Hardware") -> Table:
    sizes = hardware.collectives[0].num_bytes
    table = Table(title="µs of a collective by the bytes of a rank, all ranks at work")
    for name in ("collective", "ranks", *(f"{size / 1024:g} KiB" for size in sizes)):
        table.add_column(name, justify="left" if name == "collective" else "right")
    for one in hardware.collectives:
        table.add_row(one.kind, str(one.ranks), *(f"{1e6 * seconds:.0f}" for seconds in one.seconds))
    return table
