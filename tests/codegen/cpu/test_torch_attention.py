"""Tree attention in PyTorch operators against the dialect's reference."""

import pytest
import torch
from torch import Tensor

from flexspec.codegen.cpu.torch_attention import tree_attention
from flexspec.ir.ops import TREE_ATTENTION
from tree_cases import rotary_tables, tree_case


@pytest.mark.parametrize(
    ("window", "softcap", "sinks", "slopes", "rotary_dim"),
    [
        (None, None, None, None, 6),
        (3, None, None, None, 4),
        (1, None, None, None, 0),
        (9, 0.5, None, None, 6),
        (None, None, torch.tensor([0.3, -1.0, 2.0, 0.1]), None, 0),
        (None, None, None, torch.tensor([0.5, 0.25, 0.125, 1.0]), 0),
        (9, None, None, torch.tensor([0.5, 0.25, 0.125, 1.0]), 6),
    ],
)
@pytest.mark.parametrize("contexts", [(5, 0, 11), (0, 70, 3)])
def test_equals_the_reference(
    window: int | None, softcap: float | None, sinks: Tensor | None, slopes: Tensor | None, rotary_dim: int, contexts: tuple[int, ...]
) -> None:
    case = tree_case(3, contexts=contexts, nodes=(7, 70, 1))
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(case.num_tokens, heads, 6, generator=generator) for heads in (4, 2, 2))
    tables = rotary_tables(case.positions, rotary_dim) if rotary_dim else (None, None)
    caches = [torch.randn(2, case.num_blocks * case.block_size, 2, 16, generator=generator) for _ in range(2)]
    results, written = [], []
    for function in (TREE_ATTENTION, tree_attention):
        keys, values = (cache.clone() for cache in caches)
        results.append(function(q, k, v, *tables, keys, values, *case.batch_arguments(), 1, 0.4, window, softcap, sinks, slopes))
        written.append((keys, values))
    torch.testing.assert_close(results[1], results[0], atol=1e-5, rtol=1e-5)
    assert torch.equal(written[0][0], written[1][0]) and torch.equal(written[0][1], written[1][1])
