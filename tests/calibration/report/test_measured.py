"""What is measured beside what is predicted, and what is said when a part of it fails."""

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flexspec.calibration.report import measured as measuring
from flexspec.calibration.report.__main__ import main
from flexspec.calibration.report.measured import Measured, compared
from flexspec.calibration.report.priced import Form
from flexspec.calibration.report.sizes import QUICK
from flexspec.errors import UsageError

PLAIN, CHAIN = Form(1, 1, 1, 0), Form(1, 1, 1, 4)


@pytest.mark.parametrize(
    ("prices", "told"),
    [
        ([{PLAIN: 1, CHAIN: 2}, {PLAIN: 3, CHAIN: 4}], ""),
        (
            [{PLAIN: 1, CHAIN: 2}, {PLAIN: 3}],
            "small, batch 2: calibration 2 does not price 1 rank, n = 4; its mean is that of the others\n",
        ),
        ([{PLAIN: 1}, {PLAIN: 3}], None),
    ],
)
def test_forms_that_calibrations_do_not_price_are_named(
    prices: Any, told: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = iter(prices)
    monkeypatch.setattr(measuring, "priced", lambda *_: next(found))
    model: Any = SimpleNamespace(title="small", record=lambda: None)
    measured = Measured(model=model, times={2: {PLAIN: [1.0], CHAIN: [1.0]}}, lost=0.0)
    calibrations: Any = [None, None]
    if told is None:
        with pytest.raises(UsageError, match=r"small, batch 2: 1 rank, n = 4 was measured, and no calibration prices it"):
            compared(measured, calibrations, QUICK)
        return
    (workload,) = compared(measured, calibrations, QUICK)
    assert workload.predicted == {form: [each[form] for each in prices if form in each] for form in (PLAIN, CHAIN)}
    assert capsys.readouterr().err == told


def test_a_calibration_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3))
    assert main(["--output", str(tmp_path / "page.md"), "--quick"]) == 2
    error = capsys.readouterr().err
    assert error.endswith(
        "`flexspec calibrate` failed with status 3, for the reason above: mend that, or give a file that it wrote as --hardware\n"
    )
    assert error.count("\n") == 1 and not (tmp_path / "page.md").exists()
