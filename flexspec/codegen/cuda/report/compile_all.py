"""Compiling the variants on all cores."""

import os
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from flexspec.codegen.cuda.report.cache import cached_report
from flexspec.codegen.cuda.report.compile_ahead import CompileError
from flexspec.codegen.cuda.report.variant_report import VariantReport
from flexspec.codegen.cuda.targets import GpuTarget, find_target
from flexspec.codegen.cuda.variants import kernel_variants


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """All reports, and a line for each variant that doesn't compile.

    Attributes:
        reports: in the order of targets, then of their variants.
        refused: what the compiler said of the others.
    """

    reports: tuple[VariantReport, ...]
    refused: tuple[str, ...]


def compile_all(
    targets: Sequence[GpuTarget],
    *,
    kernels: Collection[str] | None = None,
    cache_dir: Path,
    jobs: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Outcome:
    """Compiles the variants for each target, or takes their reports from the cache.

    Args:
        targets: what to compile for.
        kernels: names of those to compile; all by default.
        cache_dir: where reports are kept.
        jobs: processes.
        progress: told after each variant how many are done, of how many.
    """
    items = [
        (target.name, index)
        for target in targets
        for index, variant in enumerate(kernel_variants(target))
        if kernels is None or variant.kernel in kernels
    ]
    reports: dict[tuple[str, int], VariantReport] = {}
    refused = []
    with _no_interpreter(), _pool(jobs) as pool:
        futures = {pool.submit(_report, *item, cache_dir): item for item in items}
        for done, future in enumerate(as_completed(futures), start=1):
            try:
                reports[futures[future]] = future.result()
            except CompileError as error:
                refused.append(str(error))
            except BrokenProcessPool:
                # Work is taken up in order, so it is one of the first that aren't done.
                suspects = [" ".join(map(str, item)) for item in items if item not in reports][:jobs]
                refused.append(f"the compiler died; it was at one of these places of the list of variants: {', '.join(suspects)}")
                break
            progress(done, len(items))
    return Outcome(reports=tuple(reports[item] for item in items if item in reports), refused=tuple(refused))


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end what they are at, and take up nothing more, when the user interrupts."""
    ignored = (signal.SIGINT, signal.SIG_IGN)
    with ProcessPoolExecutor(max_workers=jobs, mp_context=get_context("spawn"), initializer=signal.signal, initargs=ignored) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise


def _report(target_name: str, index: int, cache_dir: Path) -> VariantReport:
    # A variant holds a function of Triton's, which does not travel between processes; its place in the list does.
    target = find_target(target_name)
    return cached_report(kernel_variants(target)[index], target, cache_dir)


@contextmanager
def _no_interpreter() -> Iterator[None]:
    # The interpreter compiles nothing; processes that are started meanwhile define the kernels anew, without it.
    before = os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
