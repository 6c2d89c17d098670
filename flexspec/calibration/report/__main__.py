"""`python -m flexspec.calibration.report` measures strategies on this machine, prices the paper's, and writes a page about both."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flexspec.calibration.report.measured import Measured, compared, measure, run_program
from flexspec.calibration.report.measured_models import DTYPE, measured_models
from flexspec.calibration.report.page import page
from flexspec.calibration.report.sizes import FULL, QUICK, Sizes
from flexspec.errors import UsageError
from flexspec.passes.search.hardware import Hardware, load_hardware

_PROGRAM = "python -m flexspec.calibration.report"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; the exit status is 2 if the given hardware is none, or a program that calibrates or measures fails."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("docs/search.md"), help="the page (default: %(default)s)")
    parser.add_argument("--hardware", help="this machine with 2 devices, as it was calibrated (default: calibrate before and after)")
    parser.add_argument("--quick", action="store_true", help="measure as little as can be: whether the program works")
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="how often every strategy is timed (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} is not allowed: give 1 or more")
    sizes = QUICK if options.quick else replace(FULL, rounds=options.rounds)
    try:
        with tempfile.TemporaryDirectory() as folder:
            calibrations, measured = _measured(Path(folder), options.hardware, sizes, is_quick=options.quick)
            workloads = [one for model in measured for one in compared(model, calibrations, sizes)]
    except UsageError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 2
    given = ["--quick"] if options.quick else ["--rounds", str(sizes.rounds)]
    command = " ".join([_PROGRAM, *given])
    lost = max(one.lost for one in measured)
    text = page(workloads, sizes, dtype=DTYPE, calibrations=len(calibrations), lost=lost, command=command)
    options.output.write_text(text, encoding="utf-8")
    print(f"the page is in {options.output}")
    return 0


def _measured(folder: Path, hardware: str | None, sizes: Sizes, *, is_quick: bool) -> tuple[list[Hardware], list[Measured]]:
    """The machine as it is before the first model and after each, or as a file describes it, and what came of the models."""
    calibrations = [_calibrated(folder) if hardware is None else load_hardware(hardware)]
    measured = []
    for model in measured_models(folder, is_quick=is_quick):
        print(f"measuring {model.title}", flush=True)
        measured.append(measure(model, calibrations[0], sizes))
        if hardware is None:
            calibrations.append(_calibrated(folder))
    return calibrations, measured


def _calibrated(folder: Path) -> Hardware:
    """This machine as it is now."""
    path = folder / "calibrated.json"
    print("calibrating", flush=True)
    arguments = ["flexspec", "calibrate", "--devices", str(FULL.devices), "--output", str(path)]
    run_program(arguments, "`flexspec calibrate`", fix="mend that, or give a file that it wrote as --hardware")
    return load_hardware(str(path))


if __name__ == "__main__":
    sys.exit(main())
