"""Variants compiled in processes of their own."""

from pathlib import Path

import pytest

from flexspec.codegen.cuda.report.compile_all import compile_all
from flexspec.codegen.cuda.targets import find_target


@pytest.mark.slow
def test_reports_come_in_order_and_from_the_cache_the_second_time(tmp_path: Path) -> None:
    targets = [find_target("gfx942"), find_target("sm_80")]
    seen: list[tuple[int, int]] = []
    outcome = compile_all(
        targets, kernels=["kv_commit"], cache_dir=tmp_path, jobs=1, progress=lambda done, total: seen.append((done, total))
    )
    assert outcome.refused == ()
    assert [report.target for report in outcome.reports] == ["gfx942", "sm_80"]
    assert seen == [(1, 2), (2, 2)]
    entries = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert compile_all(targets, kernels=["kv_commit"], cache_dir=tmp_path, jobs=1) == outcome
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == entries
