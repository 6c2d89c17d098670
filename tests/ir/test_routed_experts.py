"""The operators of mixtures of experts against independent formulas, and what may be written of them."""

import pytest
import torch
from torch import Tensor

from expert_models import expert_model
from flexspec.ir.capture import capture
from flexspec.ir.cost import operator_flops
from flexspec.ir.ops import ROUTED_EXPERTS, TOP_EXPERTS
from flexspec.ir.verify import GraphError, verify

TOKENS, EXPERTS, TOP, HIDDEN, INNER = 7, 5, 2, 6, 4
CONSTANTS = {"clamped_swish": [1.5, 0.4]}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def arguments(activation: str, *, transposed: bool, interleaved: bool, biased: bool) -> list[object]:
    ids = torch.stack([torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(t))[:TOP] for t in range(TOKENS)])
    gate_up, down = random(EXPERTS, 2 * INNER, HIDDEN, seed=1), random(EXPERTS, HIDDEN, INNER, seed=2)
    if transposed:
        gate_up, down = gate_up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous()
    biases = (random(EXPERTS, 2 * INNER, seed=3), random(EXPERTS, HIDDEN, seed=4)) if biased else (None, None)
    weights = random(TOKENS, TOP, seed=5)
    given = [random(TOKENS, HIDDEN, seed=6), ids, weights, gate_up, biases[0], down, biases[1]]
    return [*given, activation, CONSTANTS.get(activation, []), transposed, interleaved]


def one_by_one(x, ids, weights, gate_up, gate_up_bias, down, down_bias, activation, constants, transposed, interleaved) -> Tensor:  # type: ignore[no-untyped-def]
    """Token by token, expert by expert, in float64."""
    rows = []
    for token in range(TOKENS):
        total = torch.zeros(HIDDEN, dtype=torch.float64)
        for slot in range(TOP):
            e = int(ids[token, slot])
            up_matrix, down_matrix = gate_up[e].double(), down[e].double()
            both = x[token].double() @ up_matrix if transposed else up_matrix @ x[token].double()
            both = both if gate_up_bias is None else both + gate_up_bias[e]
            gate, up = (both[0::2], both[1::2]) if interleaved else (both[:INNER], both[INNER:])
            if activation == "clamped_swish":
                gate, up = gate.clamp(max=constants[1]), up.clamp(-constants[1], constants[1])
                inner = gate / (1 + torch.exp(-constants[0] * gate)) * (1 + up)
            else:
                inner = gate / (1 + torch.exp(-gate)) * up
            out = inner @ down_matrix if transposed else down_matrix @ inner
            total += weights[token, slot] * (out if down_bias is None else out + down_bias[e])
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("activation", ["silu", "clamped_swish"])
@pytest.mark.parametrize(("transposed", "interleaved", "biased"), [(False, False, False), (True, True, True), (True, False, False)])
def test_a_token_has_the_weighted_sum_of_its_experts(activation: str, transposed: bool, interleaved: bool, biased: bool) -> None:
    given = arguments(activation, transposed=transposed, interleaved=interleaved, biased=biased)
    got = ROUTED_EXPERTS(*given)
    torch.testing.assert_close(got.double(), one_by_one(*given), atol=1e-5, rtol=1e-5)
    with_batch_dim = ROUTED_EXPERTS(*(one[None] if place < 3 else one for place, one in enumerate(given)))  # type: ignore[index]
    assert torch.equal(with_batch_dim[0], got)
    meta = ROUTED_EXPERTS(*(one.to("meta") if isinstance(one, Tensor) else one for one in given))
    assert (meta.shape, meta.dtype) == (got.shape, got.dtype)


def test_what_other_tokens_choose_changes_no_bit_of_a_row() -> None:
    given = arguments("silu", transposed=False, interleaved=False, biased=False)
    before = ROUTED_EXPERTS(*given)
    x, ids = given[0].clone(), given[1].clone()  # type: ignore[attr-defined]
    x[1:], ids[1:] = float("inf"), torch.tensor([4, 0])
    assert torch.equal(ROUTED_EXPERTS(x, ids, *given[2:])[0], before[0])


@pytest.mark.parametrize("normalised", [False, True])
def test_top_experts(normalised: bool) -> None:
    logits = 3 * random(TOKENS, EXPERTS)
    weights, ids = TOP_EXPERTS(logits, 3, normalised)
    for row in range(TOKENS):
        best = sorted(range(EXPERTS), key=lambda e: -logits[row, e])[:3]
        assert ids[row].tolist() == best
        powers = logits[row].double().exp()
        total = powers[best].sum() if normalised else powers.sum()
        torch.testing.assert_close(weights[row].double(), powers[best] / total, atol=1e-6, rtol=1e-5)
    meta = TOP_EXPERTS(logits.to("meta"), 3, normalised)
    assert [(one.shape, one.dtype) for one in meta] == [(one.shape, one.dtype) for one in (weights, ids)]


def test_a_token_costs_the_products_of_its_own_experts() -> None:
    graph = capture(expert_model("mixtral", num_hidden_layers=1), name="mixtral")
    assert [operator_flops(node) for node in graph.nodes(ROUTED_EXPERTS)] == [(2 * 2 * (3 * 32 * 48), 0)]


def test_a_graph_with_experts_of_other_sizes_is_refused() -> None:
    graph = capture(expert_model("gpt_oss", num_hidden_layers=1, layer_types=["full_attention"]), name="gpt_oss")
    verify(graph, "captured")
    node = graph.nodes(ROUTED_EXPERTS)[0]
    args = list(node.args)
    for place, wrong, says in ((9, False, "hidden"), (7, "tanh", "activation is known"), (2, args[0], "a weight each")):
        node.args = tuple(wrong if i == place else arg for i, arg in enumerate(args))
        with pytest.raises(GraphError, match=says):
            verify(graph)
