"""`python -m flexspec.calibration.report` measures strategies on this machine, prices the paper's, and writes a page about both."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flexspec.calibration.report.measured import measure
from flexspec.calibration.report.measured_models import DTYPE, measured_models
from flexspec.calibration.report.page import page
from flexspec.calibration.report.sizes import FULL, QUICK
from flexspec.errors import UsageError
from flexspec.passes.search.hardware import load_hardware

_PROGRAM = "python -m flexspec.calibration.report"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; the exit status is 2 if this machine was not calibrated."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/search.md"), help="the page (default: %(default)s)")
    parser.add_argument("--hardware", default="local-2", help="this machine with 2 devices, as it was calibrated (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="measure as little as can be: whether the program works")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="how often every strategy is timed (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} is not allowed: give 1 or more")
    sizes = QUICK if options.quick else replace(FULL, rounds=options.rounds)
    try:
        hardware = load_hardware(options.hardware)
    except UsageError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    workloads, lost = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for model in measured_models(Path(folder), is_quick=options.quick):
            print(f"measuring {model.title}", flush=True)
            found, its_lost = measure(model, hardware, sizes)
            workloads += found
            lost = max(lost, its_lost)
    given = ["--quick"] if options.quick else ["--rounds", str(sizes.rounds)]
    command = " ".join(["flexspec calibrate &&", _PROGRAM, *given])
    options.output.write_text(page(workloads, sizes, dtype=DTYPE, lost=lost, command=command), encoding="utf-8")
    print(f"the page is in {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
