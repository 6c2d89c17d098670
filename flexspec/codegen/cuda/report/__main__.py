"""`python -m flexspec.codegen.cuda.report` compiles every kernel variant for every GPU, checks them and writes docs/kernels.md."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from flexspec.codegen.cuda.report.cache import default_cache_dir
from flexspec.codegen.cuda.report.checks import failures
from flexspec.codegen.cuda.report.page import kernels_page
from flexspec.codegen.cuda.targets import TARGETS, find_target
from flexspec.errors import UsageError

_SECONDS_A_LINE = 60.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; the exit status is 1 if a check fails, 2 if there is no Triton or an option is wrong, 130 if interrupted."""
    parser = argparse.ArgumentParser(prog="python -m flexspec.codegen.cuda.report", description=__doc__)
    parser.add_argument("--page", type=Path, default=Path("docs/kernels.md"), help="where the page is written (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="variants compiled at once (default: %(default)s)")
    parser.add_argument("--target", action="append", help="only check the variants for this GPU, and write no page; may be repeated")
    parser.add_argument("--kernel", action="append", help="only check the variants of this kernel, and write no page; may be repeated")
    options = parser.parse_args(arguments)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        return _report(options, console)
    except UsageError as error:
        console.print(str(error), style="red")
        return 2
    except KeyboardInterrupt:
        console.print("interrupted: what was compiled is kept, and the next run goes on from there", style="red")
        return 130


def _report(options: argparse.Namespace, console: Console) -> int:
    # Without Triton the import is refused, with a message for the user.
    from flexspec.codegen.cuda.report.compile_all import compile_all

    started = monotonic()
    targets = [find_target(name) for name in options.target] if options.target else list(TARGETS)
    with _progress(console) as show:
        outcome = compile_all(targets, kernels=options.kernel, cache_dir=default_cache_dir(), jobs=options.jobs, progress=show)
    failed = [*outcome.refused, *failures(outcome.reports)]
    for line in failed:
        console.print(line, style="red")
    if not options.target and not options.kernel:
        options.page.write_text(kernels_page(outcome.reports, triton_version=version("triton")))
        console.print(f"wrote {options.page}")
    checked = f"{len(outcome.reports)} variants compiled and checked in {monotonic() - started:.0f} s"
    console.print(f"{checked}: {len(failed)} checks failed" if failed else f"{checked}: all is well")
    return 1 if failed else 0


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    """What shows how many of how many are done: a bar on a terminal, elsewhere a line a minute."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("compiling kernels", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        printed_at = monotonic()

        def show(done: int, total: int) -> None:
            nonlocal printed_at
            if monotonic() - printed_at >= _SECONDS_A_LINE:
                console.print(f"compiling kernels: {done}/{total}")
                printed_at = monotonic()

        yield show


if __name__ == "__main__":
    sys.exit(main())
