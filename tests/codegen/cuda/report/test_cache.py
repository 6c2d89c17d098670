"""Reports are made once for each source, target and compiler."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from report_cases import report

from flexspec.codegen.cuda.kernels.variant import KernelVariant
from flexspec.codegen.cuda.report import cache
from flexspec.codegen.cuda.report.cache import cache_key, cached_report
from flexspec.codegen.cuda.report.variant_report import VariantReport
from flexspec.codegen.cuda.targets import GpuTarget, find_target

TARGET = find_target("sm_90")
VARIANT = KernelVariant(
    kernel="toy",
    case="the case",
    function=SimpleNamespace(cache_key="source"),
    signature={"x": "*bf16", "n": "i32", "BLOCK": "constexpr"},
    constants={"BLOCK": 64},
    divisible=frozenset({"x"}),
)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[KernelVariant]:
    """The variants that were compiled, or would have been."""
    made: list[KernelVariant] = []

    def report_variant(variant: KernelVariant, target: GpuTarget) -> VariantReport:
        made.append(variant)
        return report(kernel=variant.kernel, case=variant.case, target=target.name)

    monkeypatch.setattr(cache, "report_variant", report_variant)
    return made


def test_a_report_is_made_once(made: list[KernelVariant], tmp_path: Path) -> None:
    first = cached_report(VARIANT, TARGET, tmp_path / "new")
    assert cached_report(VARIANT, TARGET, tmp_path / "new") == first
    assert made == [VARIANT]


@pytest.mark.parametrize("content", ["", "{", "{}", '{"instructions": 3}', "[]"])
def test_a_damaged_entry_is_made_again(made: list[KernelVariant], tmp_path: Path, content: str) -> None:
    first = cached_report(VARIANT, TARGET, tmp_path)
    [entry] = tmp_path.iterdir()
    entry.write_text(content)
    assert cached_report(VARIANT, TARGET, tmp_path) == first
    assert len(made) == 2


def test_the_key_depends_on_all_that_the_result_does() -> None:
    others = [
        replace(VARIANT, function=SimpleNamespace(cache_key="another source")),
        replace(VARIANT, signature={"x": "*fp16", "n": "i32", "BLOCK": "constexpr"}),
        replace(VARIANT, constants={"BLOCK": 128}),
        replace(VARIANT, divisible=frozenset({"x", "n"})),
        replace(VARIANT, num_warps=8),
        replace(VARIANT, num_stages=3),
    ]
    keys = [cache_key(variant, TARGET) for variant in (VARIANT, *others)] + [cache_key(VARIANT, find_target("sm_100"))]
    assert len(set(keys)) == len(keys)
    assert cache_key(replace(VARIANT), TARGET) == keys[0]
