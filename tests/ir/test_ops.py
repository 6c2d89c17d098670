"""Each dialect operator against an independent formula, and its fake shapes against real ones."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flexspec.ir.ops import ACTIVATIONS, ATTENTION, GATED_ACTIVATION, PACKED_LINEAR, RMS_NORM, ROPE, TREE_ATTENTION
from tree_cases import attend, rotary_tables, tree_case, turn

SLOPES = torch.tensor([0.5, 0.25, 0.0625, 1.0])
SINKS = torch.tensor([0.3, -1.0, 2.0, 0.1])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("window", "softcap", "sinks", "slopes"),
    [
        (None, None, None, None),
        (3, None, None, None),
        (1, None, None, None),
        (None, 0.5, None, None),
        (4, 0.7, SINKS, None),
        (None, None, None, SLOPES),
        (4, 0.7, SINKS, SLOPES),
    ],
)
def test_attention(window: int | None, softcap: float | None, sinks: Tensor | None, slopes: Tensor | None) -> None:
    q, k, v = random(2, 7, 4, 6, seed=1), random(2, 7, 2, 6, seed=2), random(2, 7, 2, 6, seed=3)
    got = ATTENTION(q, k, v, 0.4, window, softcap, sinks, slopes)
    options = {"window": window, "softcap": softcap, "sinks": sinks, "slopes": slopes}
    for row in range(2):
        for token in range(7):
            seen = slice(0, token + 1)
            expected = attend(q[row, token], k[row, seen], v[row, seen], scale=0.4, **options)
            torch.testing.assert_close(got[row, token], expected.float(), atol=1e-6, rtol=1e-5)
    plain = ATTENTION(q, k, v, 0.4, None, None, None)
    assert all(option is None for option in options.values()) or (got - plain).abs().max() > 1e-3


def test_attention_without_batch_dim_is_the_same() -> None:
    q, k, v = random(5, 4, 6, seed=1), random(5, 2, 6, seed=2), random(5, 2, 6, seed=3)
    together = ATTENTION(q[None], k[None], v[None], 0.4, 3, None, None)[0]
    torch.testing.assert_close(ATTENTION(q, k, v, 0.4, 3, None, None), together)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    x, weight = (3 * random(5, 3, 8)).to(dtype), random(8, seed=1)
    got = RMS_NORM(x, weight, 0.1)
    expected = F.rms_norm(x.double(), (8,), weight.double(), eps=0.1)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=1e-6 if dtype == torch.float32 else 2e-2, rtol=1e-2)


@pytest.mark.parametrize("rotary_dim", [8, 4])
def test_rope(rotary_dim: int) -> None:
    x, positions = random(6, 3, 8), torch.tensor([0, 1, 2, 2, 9, 100])
    got = ROPE(x, *rotary_tables(positions, rotary_dim))
    torch.testing.assert_close(got, turn(x, positions, rotary_dim=rotary_dim), atol=1e-5, rtol=1e-5)
    assert torch.equal(got[0], x[0]) and torch.equal(got[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("name", list(ACTIVATIONS))
def test_gated_activation(name: str) -> None:
    gate, up = random(4, 6, seed=1), random(4, 6, seed=2)
    x = gate.double()
    cubic = torch.sqrt(torch.tensor(2 / torch.pi)) * (x + 0.044715 * x**3)
    formula = {
        "silu": x / (1 + torch.exp(-x)),
        "gelu": x * torch.special.ndtr(x),
        "gelu_tanh": x / 2 * (1 + torch.tanh(cubic)),
        "relu": x.clamp(min=0),
    }[name]
    torch.testing.assert_close(GATED_ACTIVATION(gate, up, name), (formula * up).float(), atol=1e-6, rtol=1e-5)


def test_packed_linear() -> None:
    x, weight, bias = random(2, 3, 5), random(4, 5, seed=1), random(4, seed=2)
    expected = torch.stack([(x * row).sum(-1) for row in weight], dim=-1)
    torch.testing.assert_close(PACKED_LINEAR(x, weight, None), expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(PACKED_LINEAR(x, weight, bias), expected + bias, atol=1e-6, rtol=1e-5)


def tree_arguments(seed: int, *, rotary_dim: int = 6, padded: int = 8) -> tuple[object, tuple[Tensor, ...], dict[str, Tensor]]:
    """A tree case, the operator's tensors for it, and what the cache holds of each request's context (already rotated)."""
    case = tree_case(seed)
    count, positions = case.num_tokens, case.positions
    q, k, v = random(count, 4, 6, seed=seed), random(count, 2, 6, seed=seed + 1), random(count, 2, 6, seed=seed + 2)
    tables = rotary_tables(positions, rotary_dim) if rotary_dim else (None, None)
    keys, values = (random(2, case.num_blocks * case.block_size, 2, padded, seed=seed + i) for i in (3, 4))
    return case, (q, k, v, *tables, keys, values), {"keys": keys.clone(), "values": values.clone()}


@pytest.mark.parametrize(
    ("window", "softcap", "sinks", "slopes", "rotary_dim"),
    [
        (None, None, None, None, 6),
        (3, None, None, None, 6),
        (1, None, None, None, 0),
        (9, 0.5, None, None, 4),
        (None, None, SINKS, None, 0),
        (None, None, None, SLOPES, 0),
        (9, 0.5, SINKS, SLOPES, 6),
    ],
)
def test_tree_attention(window: int | None, softcap: float | None, sinks: Tensor | None, slopes: Tensor | None, rotary_dim: int) -> None:
    case, (q, k, v, cos, sin, keys, values), before = tree_arguments(10, rotary_dim=rotary_dim)
    got = TREE_ATTENTION(q, k, v, cos, sin, keys, values, *case.batch_arguments(), 1, 0.4, window, softcap, sinks, slopes)
    options = {"window": window, "softcap": softcap, "sinks": sinks, "slopes": slopes}
    assert torch.equal(keys[0], before["keys"][0]) and torch.equal(values[0], before["values"][0])  # the other layer
    turned_q, turned_k = (turn(x, case.positions, rotary_dim=rotary_dim) if rotary_dim else x for x in (q, k))
    for row, (context, tokens) in enumerate(case.requests):
        slots = torch.arange(context + len(tokens))
        where = case.block_tables[row, slots // case.block_size].long() * case.block_size + slots % case.block_size
        old = where[:context]
        torch.testing.assert_close(keys[1, where[context:], :, :6], turned_k[tokens], atol=1e-5, rtol=1e-5)
        assert torch.equal(keys[1, old], before["keys"][1, old]) and torch.equal(values[1, where[context:], :, :6], v[tokens])
        for token in tokens:
            path = case.ancestors[token]
            seen_k = torch.cat([before["keys"][1, old, :, :6], turned_k[path]])
            seen_v = torch.cat([before["values"][1, old, :, :6], v[path]])
            expected = attend(turned_q[token], seen_k, seen_v, scale=0.4, **options)
            torch.testing.assert_close(got[token], expected.float(), atol=1e-5, rtol=1e-5)


def operator_calls() -> dict[str, tuple[torch._ops.OpOverload, tuple[object, ...]]]:
    case, tensors, _ = tree_arguments(20)
    q, k, v = random(2, 5, 4, 6), random(2, 5, 2, 6), random(2, 5, 2, 6)
    return {
        "attention": (ATTENTION, (q, k, v, 0.4, 3, None, None, SLOPES)),
        "rms_norm": (RMS_NORM, (random(5, 2, 8), random(8), 1e-5)),
        "rope": (ROPE, (random(5, 2, 8), *rotary_tables(torch.arange(5), 4))),
        "gated_activation": (GATED_ACTIVATION, (random(5, 8), random(5, 8), "silu")),
        "packed_linear": (PACKED_LINEAR, (random(5, 8), random(3, 8), None)),
        "tree_attention": (TREE_ATTENTION, (*tensors, *case.batch_arguments(), 0, 0.4, None, None, None, SLOPES)),
    }


@pytest.mark.parametrize("name", ["attention", "rms_norm", "rope", "gated_activation", "packed_linear", "tree_attention"])
def test_schema_and_fake(name: str) -> None:
    operator, arguments = operator_calls()[name]
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_autograd_registration", "test_faketensor"))
