"""The graph as native instructions: views cost nothing, and what has no native form is named."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flexspec.codegen.cpu.instruction_list import Columns, InstructionList, UnsupportedOperator
from flexspec.codegen.cpu.instructions import build_instructions
from flexspec.ir.ops import ATTENTION
from flexspec.ir.positions import position_graph, position_values
from flexspec.passes.pipeline import RECOGNITION, SERVING
from graph_cases import TokenModule, graph_of, served


class Middle(TokenModule):
    """`function` of the result of a linear [batch, tokens, 8] and a weight [8], squared, then a linear from its `cols`
    columns, then attention."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], cols: int) -> None:
        super().__init__()
        self.function = function
        self.after = nn.Parameter(torch.ones(8, cols))

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        part = self.function(self.extra(x), self.weight)
        heads = F.linear(part * part, self.after).view(*position_ids.shape, 2, 4)
        return ATTENTION(heads, heads, heads, 0.5, None, None, None).reshape(*position_ids.shape, 8)


def instructions(function: Callable[[Tensor, Tensor], Tensor], cols: int = 8) -> InstructionList:
    model = graph_of(Middle(function, cols))
    with torch.no_grad():
        for one in (*RECOGNITION, *SERVING):
            one(model)
    return build_instructions(model, position_graph(model)[1], position_values(model)[0])


@pytest.mark.parametrize(
    ("function", "start", "cols"),
    [
        (lambda x, w: x[..., 2:6], 2, 4),
        (lambda x, w: x[..., -3:], 5, 3),
        (lambda x, w: x[..., 1:-1], 1, 6),
        (lambda x, w: x[..., 2:][..., 1:4], 3, 3),
        (lambda x, w: x.split(3, dim=-1)[2], 6, 2),
        (lambda x, w: x.split([1, 5, 2], dim=-1)[1], 1, 5),
        (lambda x, w: x.view(*x.shape[:2], 4, 2)[:, :, 1:3].flatten(2), 2, 4),
        (lambda x, w: x.view(*x.shape[:2], 4, 2).split(3, dim=2)[1].flatten(2), 6, 2),
        (lambda x, w: x.view(*x.shape[:2], 1, 8)[..., 2:5].flatten(2), 2, 3),
        (lambda x, w: x.reshape(*x.shape[:2], 2, 4).reshape(*x.shape[:2], 8)[..., 4:], 4, 4),
    ],
)
def test_views_are_columns(function: Callable[[Tensor, Tensor], Tensor], start: int, cols: int) -> None:
    program = instructions(function, cols)
    (product,) = [one for one in program.instructions if one.kind == "mul"]
    source = next(one for one in program.instructions if one.kind == "linear").out.value
    assert list(product.inputs.values()) == [Columns(source, start, cols)] * 2


OF_HEADS, OF_ALL_HEADS, ONE = torch.ones(2, 4), torch.ones(4), torch.tensor([3.0])

NATIVE: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, dict[str, object]]] = {
    "constant": (lambda x, w: x * w, "mul", {}),
    "constant first": (lambda x, w: w + x, "add", {}),
    "constant of heads": (lambda x, w: x.view(*x.shape[:2], 2, 4).mul(OF_HEADS).flatten(2), "mul", {}),
    "one column": (lambda x, w: x[..., :1] * x, "mul", {}),
    "clamp": (lambda x, w: x.clamp(max=0.5), "clamp", {"low": -math.inf, "high": 0.5}),
    "difference": (lambda x, w: x * 2 - x, "sub", {}),
    "less a constant": (lambda x, w: x - w, "sub", {}),
    "less a number": (lambda x, w: x - 2, "add_scalar", {"value": -2.0}),
    "quotient": (lambda x, w: x / (x * 2), "div", {}),
    "by one element": (lambda x, w: x * ONE, "mul_scalar", {"value": 3.0}),
    "the smaller": (lambda x, w: torch.min(x, ONE), "clamp", {"low": -math.inf, "high": 3.0}),
    "choice": (lambda x, w: torch.where(x > 1.5, x * 2, torch.expm1(x)), "where", {}),
    "comparison": (lambda x, w: torch.where(x > 1.5, x * 2, torch.expm1(x)), "greater", {"value": 1.5}),
    "square": (lambda x, w: x.relu().square(), "mul", {}),
    "sigmoid": (lambda x, w: x.sigmoid(), "activation", {"kind": "sigmoid"}),
    "norm": (lambda x, w: torch.layer_norm(x, [8]), "layer_norm", {"eps": 1e-5}),
    "norm with a weight": (lambda x, w: torch.layer_norm(x, [8], w), "layer_norm", {"eps": 1e-5, "bias": None}),
    "norm with weight and bias": (lambda x, w: torch.layer_norm(x, [8], w, w), "layer_norm", {"eps": 1e-5}),
}


@pytest.mark.parametrize("name", list(NATIVE))
def test_what_is_done_to_each_element_is_native(name: str) -> None:
    function, kind, options = NATIVE[name]
    program = instructions(function)
    linear = next(place for place, one in enumerate(program.instructions) if one.kind == "linear")
    done = next(one for one in program.instructions[linear + 1 :] if one.kind == kind)
    assert options.items() <= done.options.items()
    assert done.out.cols == 8 and ("b" in done.options) == ("constant" in name), name


UNSUPPORTED: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "operator": (lambda x, w: x.erf(), "aten.erf.default"),
    "half a constant": (lambda x, w: x.view(*x.shape[:2], 2, 4).mul(OF_ALL_HEADS).flatten(2), "aten.mul.Tensor with broadcasting"),
    "one column of a head": (lambda x, w: x.view(*x.shape[:2], 2, 4).mul(x[..., :2, None]).flatten(2), "aten.unsqueeze.default"),
    "cube": (lambda x, w: x**3, "aten.pow.Tensor_Scalar to the power of 3"),
    "clamp by values": (lambda x, w: x.clamp(min=x * 0.5), "aten.clamp.Tensor"),
    "the smaller of two values": (lambda x, w: torch.minimum(x, x * 0.5), "aten.minimum.default by something other than numbers"),
    "scaled sum": (lambda x, w: torch.add(x, x, alpha=2), "aten.add.Tensor with {'alpha': 2}"),
    "one over": (lambda x, w: 1 / x, "aten.reciprocal.default"),
    "quotient with one column first": (lambda x, w: x[..., :1] / x, "aten.div.Tensor with broadcasting"),
    "choice with one column": (lambda x, w: torch.where(x > 0, x[..., :1], x), "aten.where.self with broadcasting"),
    "norm of all heads": (lambda x, w: F.layer_norm(x.view(*x.shape[:2], 2, 4), (2, 4)).flatten(2), "layer_norm over [2, 4]"),
    "cat of heads": (lambda x, w: torch.cat([x.view(*x.shape[:2], 2, 4)] * 2, -1).reshape(*x.shape[:2], 16)[..., :8], "cat of dim 2"),
    "row of constants": (lambda x, w: x * (w[None] * 2), "aten.reshape.default of constants"),
}


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_what_has_no_native_form_is_named(name: str) -> None:
    function, says = UNSUPPORTED[name]
    with pytest.raises(UnsupportedOperator) as caught:
        instructions(function)
    assert says in str(caught.value)


def test_blocks_are_unrolled_with_their_own_weights() -> None:
    model = served("mistral")[1]
    program = build_instructions(model, position_graph(model)[1], position_values(model)[0])
    attentions = [one for one in program.instructions if one.kind == "tree_attention"]
    assert [one.options["layer"] for one in attentions] == [0, 1]
    assert all((one.options["num_heads"], one.options["num_kv_heads"], one.options["head_dim"]) == (4, 2, 8) for one in attentions)
    assert all(one.options["window"] == 8 and one.options["scale"] == 8**-0.5 for one in attentions)
    assert all(one.inputs.keys() == {"q", "k", "v", "cos", "sin"} for one in attentions)
    weights = [one.options["weight"] for one in program.instructions if one.kind == "linear"]
    assert len(set(weights)) == len(weights) == 9
    assert len(program.position_values) == 2
    after = [one.kind for one in program.instructions if one.out.value in program.after_gather]
    assert after == ["gather_rows", "rms_norm", "linear"]


def test_every_other_column_is_no_view() -> None:
    with pytest.raises(UnsupportedOperator, match="slice of dim 1"):
        instructions(lambda x, w: x[..., ::2], 4)
