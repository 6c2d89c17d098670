"""Fusion of native instructions into the linears beside them."""

import pytest
from torch import Tensor
from torch.nn import functional as F

from flexspec.codegen.cpu.fusion import fuse
from flexspec.codegen.cpu.instructions import InstructionList, build_instructions
from flexspec.ir.positions import position_graph, position_values
from flexspec.passes.pack import pack_linears
from flexspec.passes.pipeline import RECOGNITION
from graph_cases import TokenModule, graph_of, served
from tiny_models import Family


def instructions(module: TokenModule) -> InstructionList:
    """Of a module without attention, fused."""
    model = graph_of(module)
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
