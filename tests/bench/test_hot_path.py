"""Models that would not be measured as flexspec runs them."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from flexspec.bench.hot_path import check_hot_path, slow_targets
from flexspec.codegen.lowering import LoweringReport
from flexspec.errors import UsageError

NATIVE = LoweringReport(target="cpu-native", implementations={"flexspec.rms_norm.default": "native"})
LIBRARY = LoweringReport(target="cpu-torch", reason="no native form of x", implementations={"aten.x": "aten.x"})


def llm(*lowerings: LoweringReport, missed: str = "") -> Any:
    """An LLM named `a`, then SSMs."""
    first, *ssms = [
        SimpleNamespace(name=name, model=SimpleNamespace(lowering=one), missed=missed) for name, one in zip("abc", lowerings, strict=False)
    ]
    return SimpleNamespace(plan=SimpleNamespace(llm=first, ssms=ssms))


def test_native_models_and_library_kernels_are_measured() -> None:
    check_hot_path(llm(NATIVE, NATIVE))
    assert slow_targets(llm(NATIVE, NATIVE)) == []
    check_hot_path(llm(NATIVE, LIBRARY))
    (warning,) = slow_targets(llm(NATIVE, LIBRARY))
    assert warning == "b ran on cpu-torch, NOT on cpu-native: these speeds are not flexspec's. no native form of x"


def test_a_reference_on_the_hot_path_is_named() -> None:
    slow = LoweringReport(target="cpu-torch", reason="no compiler", implementations={"flexspec.rms_norm.default": "reference", "b": "b"})
    with pytest.raises(
        UsageError, match=re.escape("b can't be measured: on cpu-torch (no compiler) the slow reference runs for flexspec.rms_norm")
    ):
        check_hot_path(llm(NATIVE, slow))


def test_what_a_pass_missed_is_named() -> None:
    with pytest.raises(UsageError, match=r"a can't be measured: norms were not recognised, so it runs slower than it could; give"):
        check_hot_path(llm(NATIVE, missed="norms were not recognised"))


def test_a_failing_compiler_is_told() -> None:
    with pytest.raises(UsageError, match=r"a can't be measured: g\+\+ failed; mend the compiler"):
        check_hot_path(llm(LoweringReport(target="cpu-torch", reason="g++ failed", compile_failed=True)))
