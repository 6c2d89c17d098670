"""The reduction of split attention, in Triton's interpreter, against softmax over all scores."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.combine_splits import combine_splits, combine_splits_reference, combine_splits_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget


@pytest.mark.parametrize("combine", [combine_splits, combine_splits_reference])
@pytest.mark.parametrize(("splits", "head_dim", "dtype"), [(1, 16, torch.float32), (3, 80, torch.float16), (32, 256, torch.float32)])
def test_equals_attention_over_all_keys(combine: Callable[..., Tensor], splits: int, head_dim: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(splits)
    tokens, heads, keys = 4, 3, 6
    scores = 5 * torch.randn(splits, tokens, heads, keys, generator=generator, dtype=torch.float64) + 200
    values = torch.randn(splits, keys, head_dim, generator=generator, dtype=torch.float64)
    # Parts without keys: all but one of the second token; the third is padding.
    scores[:-1, 1] = -torch.inf
    slots = torch.tensor([5, 0, -1, 2], dtype=torch.int32)
    partial = torch.softmax(scores, dim=-1) @ values[:, None]
    log_sums = torch.logsumexp(scores, dim=-1) / torch.log(torch.tensor(2.0, dtype=torch.float64))
    partial[:, 2], log_sums[:, 2], partial[:-1, 1] = torch.nan, torch.nan, torch.nan
    out = combine(partial.float(), log_sums.float(), slots, dtype)
    weights = torch.softmax(scores.permute(1, 2, 0, 3).flatten(2), dim=-1)
    expected = weights @ values.flatten(0, 1)
    expected[2] = 0.0
    tolerance = 1e-4 if dtype == torch.float32 else 2e-3
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


def test_cases_that_no_variant_covers() -> None:
    def combine(splits: int = 2, head_dim: int = 16, dtype: torch.dtype = torch.float32) -> None:
        combine_splits(torch.zeros(splits, 1, 1, head_dim), torch.zeros(splits, 1, 1), torch.zeros(1, dtype=torch.int32), dtype)

    with pytest.raises(UncoveredCase, match="33 splits: at most 32"):
        combine(splits=33)
    with pytest.raises(UncoveredCase, match=r"torch\.float64"):
        combine(dtype=torch.float64)
    with pytest.raises(UncoveredCase, match="head size 260"):
        combine(head_dim=260)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_variants(target: GpuTarget) -> None:
    variants = combine_splits_variants(target)
    assert [variant.case for variant in variants] == ["bf16", "fp16", "fp32"]
    for variant in variants:
        assert list(variant.signature) == variant.function.arg_names
