"""Linears whose result several operators take parts of become several linears, whatever order the columns are in."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from flexspec.ir.ops import ATTENTION
from flexspec.passes.attention_pattern import recognise_attention
from flexspec.passes.fuse_linears import fuse_linears
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.split_linears import split_linears
from graph_cases import TokenModule, assert_same, captured, graph_logits, graph_of, prompt, reference_logits

_aten = torch.ops.aten

WITHOUT_ATTENTION = [one for one in FLAT if one is not recognise_attention]


class _Sliced(nn.Module):
    """One linear of which three parts are used."""

    def __init__(self, *, also_whole: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.wide = nn.Linear(6, 12)
        self.head = nn.Linear(4, 11)
        self.also_whole = also_whole

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        wide = self.wide(self.embedding(input_ids + 0 * position_ids))
        result: Tensor = self.head(torch.sigmoid(wide[..., :4]) * wide[..., 4:8] + wide[..., 8:])
        return result + wide.mean(-1, keepdim=True) if self.also_whole else result


def test_gpt2_gets_queries_keys_and_values_of_their_own() -> None:
    module, model = captured("gpt2")
    ids = prompt(9)
    run_passes(model, FLAT[:-1])
    assert len(model.nodes(_aten.split.Tensor)) == 2
    assert split_linears(model) == 2
    assert not model.nodes(_aten.split.Tensor)
    linears = model.nodes(_aten.linear.default)
    assert len(linears) == 2 * 6 + 1
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids))
    weights = {module.transformer.h[layer].attn.c_attn.weight.untyped_storage().data_ptr() for layer in range(2)}
    parts = [model.parameter(node.args[1]) for node in linears]  # type: ignore[arg-type]
    assert sum(part.untyped_storage().data_ptr() in weights for part in parts) == 6, "the parts are views"
    assert fuse_linears(model)[0] == 6
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids))


def test_slices_are_parts_too() -> None:
    module = _Sliced()
    model = graph_of(module)
    run_passes(model, WITHOUT_ATTENTION)
    assert [node.meta["val"].shape[-1] for node in model.nodes(_aten.linear.default)] == [4, 4, 4, 11]
    torch.testing.assert_close(graph_logits(model, torch.arange(5)), reference_logits(module, torch.arange(5)))


def test_a_result_with_other_uses_stays_whole() -> None:
    model = graph_of(_Sliced(also_whole=True))
    run_passes(model, WITHOUT_ATTENTION)
    assert [node.meta["val"].shape[-1] for node in model.nodes(_aten.linear.default)] == [12, 11]


class _Taken(TokenModule):
    """One linear, of whose result [batch, tokens, columns] `take` makes queries of 4 heads, and keys and values, of 4 dims a head."""

    def __init__(self, columns: int, take: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.take = take
        self.wide = nn.Linear(8, columns)
        self.after = nn.Linear(16, 8)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        queries, keys, values = self.take(self.wide(x))
        result: Tensor = self.after(ATTENTION(queries, keys, values, 0.5, None, None, None).flatten(2))
        return result


def _by_kv_head(x: Tensor) -> list[Tensor]:
    """Two, with two queries each."""
    grouped = x.unflatten(-1, (2, 4, 4))
    return [grouped[:, :, :, :2].flatten(2, 3), grouped[:, :, :, 2], grouped[:, :, :, 3]]


def _by_piece(x: Tensor) -> list[Tensor]:
    """Two, each of which has two heads of the queries, then of the values, then of the keys."""
    queries, values, keys = x.unflatten(-1, (2, 24)).split(8, dim=-1)
    return [one.reshape(*x.shape[:2], 4, 4) for one in (queries, keys, values)]


LAYOUTS: dict[str, tuple[int, Callable[[Tensor], Sequence[Tensor]]]] = {
    "one after the other": (48, lambda x: [one.unflatten(-1, (4, 4)) for one in x.split(16, dim=-1)]),
    "by head": (48, lambda x: x.unflatten(-1, (4, 12)).split(4, dim=-1)),
    "by head, selected": (48, lambda x: [x.unflatten(-1, (4, 3, 4))[:, :, :, i] for i in range(3)]),
    "by head, moved to the front": (48, lambda x: [x.unflatten(-1, (4, 3, 4)).permute(0, 1, 3, 2, 4)[:, :, i] for i in range(3)]),
    "one KV head": (24, lambda x: x.unflatten(-1, (6, 4)).split([4, 1, 1], dim=2)),
    "by KV head": (32, _by_kv_head),
    "by piece": (48, _by_piece),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_keys_and_values_have_linears_of_their_own(layout: str) -> None:
    module = _Taken(*LAYOUTS[layout])
    model = graph_of(module)
    run_passes(model, FLAT)
    (attention,) = model.nodes(ATTENTION)
    numbers = torch.arange(module.wide.out_features)[None, None]
    for operand, expected in zip(attention.args[:3], module.take(numbers), strict=True):
        assert operand.target == _aten.reshape.default  # type: ignore[union-attr]
        (linear, _) = operand.args  # type: ignore[union-attr]
        for given, whole in zip(linear.args[1:], (module.wide.weight, module.wide.bias), strict=True):
            assert torch.equal(model.parameter(given), whole[expected.flatten()])
    assert_same(model, module)
    assert fuse_linears(model)[0] == 3
    assert_same(model, module)


NOT_TAKEN_APART: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "the whole is read besides": lambda x: [x.unflatten(-1, (4, 4)), x[..., :8].unflatten(-1, (2, 4)), x[..., 8:].unflatten(-1, (2, 4))],
    "columns are left over": lambda x: [
        x.unflatten(-1, (6, 4))[:, :, :4],
        x[..., 16:20].unflatten(-1, (1, 4)),
        x[..., 16:20].unflatten(-1, (1, 4)),
    ],
    "columns in turns of one": lambda x: [x.unflatten(-1, (4, 4)).transpose(2, 3)] * 3,
}


@pytest.mark.parametrize("what", NOT_TAKEN_APART)
def test_what_is_no_linear_of_several(what: str) -> None:
    module = _Taken(24 if what == "columns are left over" else 16, NOT_TAKEN_APART[what])
    model = graph_of(module)
    run_passes(model, FLAT)
    assert len(model.nodes(_aten.linear.default)) == 3
    assert_same(model, module)


def test_parts_of_a_weight_without_memory_have_none() -> None:
    """The strategy search reads models that big."""
    module = _Taken(*LAYOUTS["by head"])
    module.wide.weight = nn.Parameter(torch.zeros(()).expand(48, 8), requires_grad=False)
    model = graph_of(module)
    run_passes(model, FLAT)
    rows = [model.parameter(node) for node in model.graph.find_nodes(op="get_attr") if "wide_weight_" in str(node.target)]
    assert len(rows) == 3 and all(one.untyped_storage().nbytes() == 4 for one in rows)
