"""The command: what it prints, writes and exits with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from report_cases import report

from flexspec.codegen.cuda.report import __main__ as command
from flexspec.codegen.cuda.report.compile_all import Outcome


def run(monkeypatch: pytest.MonkeyPatch, outcome: Outcome, arguments: Sequence[str]) -> int:
    """The command's exit status where compilation comes to `outcome`."""

    def compile_all(*args: Any, **options: Any) -> Outcome:
        return outcome

    monkeypatch.setattr("flexspec.codegen.cuda.report.compile_all.compile_all", compile_all)
    return command.main(arguments)


def test_the_page_has_a_row_for_each_case_and_a_column_for_each_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "kernels.md"
    reports = (report(target="sm_80"), report(target="sm_90"), report(target="sm_90", case="fp8 cache", shared_bytes=3 * 1024))
    assert run(monkeypatch, Outcome(reports=reports, refused=()), ["--page", str(page)]) == 0
    text = page.read_text()
    assert "| bf16 | 100 regs, 1 KiB, 4 loads, 8 HMMA | 100 regs, 1 KiB, 4 loads, 8 HMMA |  |  |\n" in text
    assert "| fp8 cache |  | 100 regs, 3 KiB, 4 loads, 8 HMMA |  |  |\n" in text
    assert "1 for sm_80, 2 for sm_90, 0 for sm_100" in text
    assert "| 32,768 | 64 | 135.53 | 68.29 | 34.43 | 43.58 µs (matrix units) | 43.58 µs (matrix units) |" in text


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (Outcome(reports=(report(spill_bytes=8),), refused=()), "sm_90: tree_attention (bf16) spills 8 bytes a thread"),
        (Outcome(reports=(report(),), refused=("toy (bf16) for sm_90: no",)), "toy (bf16) for sm_90: no"),
    ],
)
def test_what_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], outcome: Outcome, message: str
) -> None:
    assert run(monkeypatch, outcome, ["--page", str(tmp_path / "kernels.md")]) == 1
    printed = capsys.readouterr().err
    assert message in printed and "1 checks failed" in printed


def test_a_selection_writes_no_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "kernels.md"
    assert run(monkeypatch, Outcome(reports=(report(),), refused=()), ["--page", str(page), "--target", "sm_90"]) == 0
    assert not page.exists()


def test_an_unknown_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, Outcome(reports=(), refused=()), ["--target", "sm_70"]) == 2
    assert "no kernels for GPU 'sm_70'" in capsys.readouterr().err
