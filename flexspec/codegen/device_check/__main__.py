"""`python -m flexspec.codegen.device_check` checks and measures on a GPU what can't be on other machines, in less than four minutes."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import torch

from flexspec.codegen.device_check.sizes import DRY, FULL


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; the exit status is 1 if something is not as it should be, 2 if nothing can be checked here."""
    began = monotonic()
    parser = argparse.ArgumentParser(prog="python -m flexspec.codegen.device_check", description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("device_check.json"), help="where the report is written (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="run everything as small as can be on a CPU, without kernels and times")
    options = parser.parse_args(arguments)
    reason = _reason_against(is_dry=options.dry_run)
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    # Kernels can't be imported without Triton.
    from flexspec.codegen.device_check.program import run_check

    device = torch.device("cpu") if options.dry_run else torch.device("cuda", torch.cuda.current_device())
    report = run_check(DRY if options.dry_run else FULL, device, path=options.json, say=_say, began=began)
    _say(f"\n{'all is well' if report.ok else 'NOT all is well'}: {report.seconds:.0f} s, report in {options.json}")
    return 0 if report.ok else 1


def _reason_against(*, is_dry: bool) -> str | None:
    """Why nothing can be checked here; None if it can."""
    if importlib.util.find_spec("triton") is None:
        return "the kernels are written in Triton, which is not installed: pip install triton (on Linux, x86-64)"
    if is_dry:
        return None
    if not torch.cuda.is_available():
        return f"no GPU is visible to PyTorch {torch.__version__}: nothing to check (--dry-run checks this program itself)"
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        return "TRITON_INTERPRET is set, so kernels would run in an interpreter on the CPU: unset it"
    return None


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
