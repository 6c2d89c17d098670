"""Fusion of native instructions into the linears beside them."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flexspec.codegen.cpu.fusion import fuse
from flexspec.codegen.cpu.instruction_list import InstructionList
from flexspec.codegen.cpu.instructions import build_instructions
from flexspec.ir.capture import capture
from flexspec.ir.positions import position_graph, position_values
from flexspec.passes.pack import pack_linears
from flexspec.passes.pipeline import RECOGNITION
from graph_cases import TokenModule, served
from tiny_models import Family


def instructions(module: TokenModule, **outputs: Any) -> InstructionList:
    """Of a module without attention, fused; `outputs` are options of `capture`."""
    model = capture(module.eval(), name="hand-written", **outputs)
    for one in (*RECOGNITION, pack_linears):
        one(model)
    program = build_instructions(model, position_graph(model)[1], position_values(model)[0])
    fuse(program)
    return program


def kinds(program: InstructionList) -> list[str]:
    return [one.kind for one in program.instructions]


class Residual(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x + self.extra(x)


class ActivatedResidual(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.gelu(self.extra(x), approximate="tanh") + x


class ResidualMadeLater(TokenModule):
    """The linear comes before the value that it is added to."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        branch = self.extra(x)
        return branch + F.layer_norm(x, (8,), self.weight) * 2.0


class Norm(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.layer_norm(x, (8,), self.weight, eps=0.5)


class Gate(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.silu(x) * self.extra(x)


class SharedNorm(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        normed = F.layer_norm(x, (8,), self.weight)
        return self.extra(normed) + normed


class SharedLinear(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        branch = self.extra(x)
        return (x + branch) * branch


class Squared(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.relu(self.extra(x)).square()


class SquaredBesides(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        positive = F.relu(self.extra(x))
        return positive.square() + positive


def test_a_squared_relu_joins_the_linear() -> None:
    program = instructions(Squared())
    assert kinds(program) == ["embedding", "linear", "linear"]
    assert program.instructions[1].options["activation"] == "relu_squared"
    assert program.instructions[1].absorbed.keys() == {"aten.relu.default", "aten.square.default"}
    assert kinds(instructions(SquaredBesides())) == ["embedding", "linear", "mul", "add", "linear"]


def test_a_sum_with_a_constant_is_no_residual() -> None:
    class Shifted(TokenModule):
        def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return self.weight + F.silu(self.extra(x))

    assert kinds(instructions(Shifted())) == ["embedding", "linear", "add", "linear"]


def test_a_residual_joins_the_linear() -> None:
    program = instructions(Residual())
    assert kinds(program) == ["embedding", "linear", "linear"]
    embedding, linear, _ = program.instructions
    assert linear.inputs["residual"].value == linear.inputs["x"].value == embedding.out.value
    assert linear.absorbed == {"aten.add.Tensor": "native, in the linear before it"}


def test_an_activation_joins_before_the_residual() -> None:
    program = instructions(ActivatedResidual())
    assert kinds(program) == ["embedding", "linear", "linear"]
    assert program.instructions[1].options["activation"] == "gelu_tanh" and "residual" in program.instructions[1].inputs
    assert program.instructions[1].absorbed.keys() == {"aten.gelu.default", "aten.add.Tensor"}


def test_the_linear_waits_for_its_residual() -> None:
    program = instructions(ResidualMadeLater())
    assert kinds(program) == ["embedding", "layer_norm", "mul_scalar", "linear", "linear"]
    written = {one.out.value: i for i, one in enumerate(program.instructions)}
    for i, one in enumerate(program.instructions):
        assert all(written[columns.value] < i for columns in one.inputs.values())


def test_what_comes_before_a_linear_joins_it() -> None:
    program = instructions(Norm())
    assert kinds(program) == ["embedding", "linear"]
    kind, options = program.instructions[1].options["prologue"]
    assert kind == "layer_norm" and options["eps"] == 0.5
    program = instructions(Gate())
    assert kinds(program) == ["embedding", "linear", "linear"]
    assert program.instructions[2].options["prologue"][0] == "gate" and program.instructions[2].inputs.keys() == {"gate", "up"}


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (SharedNorm(), ["embedding", "layer_norm", "linear", "linear"]),  # the sum still joins, the norm is read twice
        (SharedLinear(), ["embedding", "linear", "add", "mul", "linear"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TokenModule) else "",
)
def test_values_read_twice_are_kept(module: TokenModule, expected: list[str]) -> None:
    assert kinds(instructions(module)) == expected


class Joined(TokenModule):
    """A norm's result, a linear's, and something read twice, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.join = nn.Linear(24, 8)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        normed, branch = F.layer_norm(x, (8,), self.weight), self.extra(x)
        joined: Tensor = self.join(torch.cat([normed, branch[..., :3], x, branch[..., 3:]], dim=-1))
        return joined


def test_parts_of_a_concatenation_are_written_in_place_or_copied() -> None:
    program = instructions(Joined())
    assert kinds(program) == ["embedding", "layer_norm", "linear", "copy", "copy", "copy", "linear", "linear"]
    whole = program.instructions[6].inputs["x"]
    assert (whole.start, whole.cols) == (0, 24)
    parts = [one.out for one in program.instructions if one.out.value == whole.value]
    assert [(one.start, one.cols) for one in parts] == [(0, 8), (8, 3), (11, 8), (19, 5)]
    assert program.instructions[1].absorbed == {"aten.cat.default": "native, written in place"}


class JoinedAgain(Joined):
    """A concatenation inside another, which is itself read for its second part alone."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        inner = torch.cat([F.layer_norm(x, (8,), self.weight), self.extra(x)], dim=-1)
        joined: Tensor = self.join(torch.cat([inner[..., 8:], inner[..., 8:], x], dim=-1))
        return joined


def test_a_part_that_is_read_twice_stays() -> None:
    program = instructions(JoinedAgain())
    assert kinds(program) == ["embedding", "layer_norm", "linear", "copy", "copy", "copy", "linear", "linear"]
    inner = program.instructions[2].out
    assert (inner.start, inner.cols) == (8, 8) and program.instructions[3].inputs["x"] == inner


@pytest.mark.parametrize(("read_by", "copies"), [("cat", 0), ("cat and a linear", 1)])
def test_features_are_filled_in_where_they_are_read(read_by: str, copies: int) -> None:
    class Takes(TokenModule):
        def __init__(self) -> None:
            super().__init__()
            self.join = nn.Linear(16, 8)

        def forward(self, input_ids: Tensor, position_ids: Tensor, features: Tensor) -> Tensor:
            x = self.join(torch.cat([self.table(input_ids), features], dim=-1))
            return self.head(x if read_by == "cat" else x + self.extra(features))

    program = instructions(Takes(), feature_size=8)
    assert program.features is not None and kinds(program).count("copy") == copies
    assert (program.features.start, program.features.cols) == ((8, 8) if copies == 0 else (0, 8))
    assert kinds(program)[: 2 + copies] == ["embedding", *["copy"] * copies, "linear"]


def test_a_hidden_state_is_a_value_that_is_kept() -> None:
    plain, kept = instructions(Residual()), instructions(Residual(), hidden_states=["extra"])
    assert kinds(plain) == ["embedding", "linear", "linear"] and kinds(kept) == ["embedding", "linear", "add", "linear"]
    assert kept.hidden_states == [kept.instructions[1].out] and plain.hidden_states == []


LAYER: dict[Family, list[str]] = {
    "llama": ["linear", "tree_attention", "linear", "linear", "linear"],
    "qwen3": ["linear", "rms_norm", "rms_norm", "tree_attention", "linear", "linear", "linear"],
    "gpt2": ["linear", "tree_attention", "linear", "linear", "linear"],
    "opt": ["linear", "tree_attention", "linear", "linear", "linear"],
}


@pytest.mark.parametrize("family", list(LAYER))
def test_a_layer_of_each_family(family: Family) -> None:
    model = served(family)[1]
    program = build_instructions(model, position_graph(model)[1], position_values(model)[0])
    fuse(program)
    start = ["embedding", "add"] if family in ("gpt2", "opt") else ["embedding"]
    assert kinds(program) == [*start, *LAYER[family] * 2, "gather_rows", "linear"]
