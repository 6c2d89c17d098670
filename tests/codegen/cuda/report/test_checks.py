"""Each check fails for what it is there for, and names it."""

from typing import Any

import pytest
from report_cases import report

from flexspec.codegen.cuda.report.checks import failures


def test_what_is_right_passes() -> None:
    assert failures([report(), report(element_types=("fp32", "i32"), wide_loads=0, matrix=0), report(kernel="kv_commit", matrix=0)]) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spill_bytes": 8}, "spills 8 bytes a thread"),
        ({"kernel": "kv_commit", "head_dim": None, "spill_bytes": 8}, "spills 8 bytes a thread"),
        ({"target": "gfx942", "shared_bytes": 64 * 1024 + 1}, "takes 65537 bytes of shared memory of 65536"),
        ({"wide_loads": 3}, "has 3 loads of 16 bytes, and a tile takes 4"),
        ({"matrix": 0}, "doesn't use the matrix units"),
        ({"element_types": ("fp32", "i32"), "tensor_float": True}, "multiplies float32 in TF32"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], message: str) -> None:
    wrong = report(case="the case", **changes)
    assert failures([report(), wrong]) == [f"{wrong.target}: {wrong.kernel} (the case) {message}"]


def test_heads_of_more_than_128_dims_may_spill() -> None:
    assert failures([report(head_dim=256, spill_bytes=64)]) == []


def test_no_target_has_more_than_150_variants() -> None:
    assert failures([report()] * 150 + [report(target="sm_80")] * 150) == []
    assert failures([report()] * 151) == ["sm_90: 151 variants, at most 150 may be"]
