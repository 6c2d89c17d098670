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


def arguments(activation: str, *, biased: bool = False) -> list[object]:
    ids = torch.stack([torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(t))[:TOP] for t in range(TOKENS)])
    gate, up, down = random(EXPERTS, INNER, HIDDEN, seed=1), random(EXPERTS, INNER, HIDDEN, seed=8), random(EXPERTS, HIDDEN, INNER, seed=2)
    biases = (random(EXPERTS, INNER, seed=3), random(EXPERTS, INNER, seed=9), random(EXPERTS, HIDDEN, seed=4)) if biased else (None,) * 3
    weights = random(TOKENS, TOP, seed=5)
    matrices = [one for pair in zip((gate, up, down), biases, strict=True) for one in pair]
    return [random(TOKENS, HIDDEN, seed=6), ids, weights, *matrices, activation, CONSTANTS.get(activation, [])]


def one_by_one(x, ids, weights, gate, gate_bias, up, up_bias, down, down_bias, activation, constants) -> Tensor:  # type: ignore[no-untyped-def]
    """Token by token, expert by expert, in float64."""

    def projected(row, matrix, bias, e):  # type: ignore[no-untyped-def]
        return matrix[e].double() @ row + (0 if bias is None else bias[e])

    rows = []
    for token in range(TOKENS):
        total = torch.zeros(HIDDEN, dtype=torch.float64)
        for slot in range(TOP):
            e = int(ids[token, slot])
            row = x[token].double()
            g, u = projected(row, gate, gate_bias, e), projected(row, up, up_bias, e)
            if activation == "clamped_swish":
                g, u = g.clamp(max=constants[1]), u.clamp(-constants[1], constants[1])
                inner = g / (1 + torch.exp(-constants[0] * g)) * (1 + u)
            else:
                inner = g / (1 + torch.exp(-g)) * u
            total += weights[token, slot] * projected(inner, down, down_bias, e)
        rows.append(total)
    return torch.stack(rows)


@pytest.mark.parametrize("activation", ["silu", "clamped_swish"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_token_has_the_weighted_sum_of_its_experts(activation: str, biased: bool) -> None:
    given = arguments(activation, biased=biased)
    got = ROUTED_EXPERTS(*given)
    torch.testing.assert_close(got.double(), one_by_one(*given), atol=1e-5, rtol=1e-5)
    with_batch_dim = ROUTED_EXPERTS(*(one[None] if place < 3 else one for place, one in enumerate(given)))  # type: ignore[index]
    assert torch.equal(with_batch_dim[0], got)
    meta = ROUTED_EXPERTS(*(one.to("meta") if isinstance(one, Tensor) else one for one in given))
    assert (meta.shape, meta.dtype) == (got.shape, got.dtype)


def test_what_other_tokens_choose_changes_no_bit_of_a_row() -> None:
    given = arguments("silu")
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
    for place, wrong, says in ((3, args[7], "hidden"), (9, "tanh", "activation is known"), (2, args[0], "a weight each")):
        node.args = tuple(wrong if i == place else arg for i, arg in enumerate(args))
        with pytest.raises(GraphError, match=says):
            verify(graph)
