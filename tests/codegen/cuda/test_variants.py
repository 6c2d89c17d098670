"""The list of all kernel variants."""

import re
import sys
from importlib import reload
from pathlib import Path

import pytest

from flexspec.codegen.cuda import variants
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget
from flexspec.errors import UsageError

EACH_TARGET = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


@EACH_TARGET
def test_there_are_few_enough_each_with_a_case_of_its_own(target: GpuTarget) -> None:
    cases = [(variant.kernel, variant.case) for variant in variants.kernel_variants(target)]
    assert len(cases) <= 150
    assert len(set(cases)) == len(cases)


@EACH_TARGET
def test_no_two_are_the_same_specialisation(target: GpuTarget) -> None:
    listed = [
        (variant.function, *variant.signature.items(), *variant.constants.items(), variant.divisible, variant.num_warps, variant.num_stages)
        for variant in variants.kernel_variants(target)
    ]
    assert len(set(listed)) == len(listed)


@EACH_TARGET
def test_signatures_name_the_parameters_in_order(target: GpuTarget) -> None:
    for variant in variants.kernel_variants(target):
        assert list(variant.signature) == list(variant.function.arg_names), (variant.kernel, variant.case)


@EACH_TARGET
def test_8_bit_caches_are_where_the_gpu_has_the_type(target: GpuTarget) -> None:
    kinds = {kind for variant in variants.kernel_variants(target) for kind in variant.signature.values() if "fp8" in kind}
    assert kinds == {"sm_80": set(), "gfx942": {"*fp8e4b8"}}.get(target.name, {"*fp8e4nv"})


def test_every_kernel_is_listed() -> None:
    folder = Path(variants.__file__).parent / "kernels"
    listing = [name for path in folder.glob("*.py") for name in re.findall(r"^def (\w+_variants)\(target", path.read_text(), re.MULTILINE)]
    assert listing and [name for name in listing if not hasattr(variants, name)] == []


def test_without_triton_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("flexspec.codegen.cuda.kernels.") and name.endswith("combine_splits")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(UsageError, match="pip install triton"):
        reload(variants)
    monkeypatch.undo()
    reload(variants)
