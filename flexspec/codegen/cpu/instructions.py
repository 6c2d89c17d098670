"""The graph as a straight list of instructions on named values, blocks unrolled, views resolved.

A value is a float32 matrix with one row a token. A view (slice, reshape) is a column range of a value and costs nothing.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import (
    COMBINE,
    GATED_ACTIVATION,
    PACKED_LINEAR,
    REDUCE,
    REPARTITION,
    REPLICATE,
    RMS_NORM,
    ROUTED_EXPERTS,
    TOP_EXPERTS,
    TREE_ATTENTION,
)

_aten = torch.ops.aten

COLLECTIVES = frozenset({"combine", "reduce", "replicate"})
"""Kinds of instructions at which ranks talk to each other."""

MAX_EXPERTS = 1024
"""As many as the native kernel of `flexspec::top_experts` can choose from."""


class UnsupportedOperator(Exception):
    """The native target has no instruction for an operator."""


@dataclass(frozen=True)
class Columns:
    """Columns start … start + cols - 1 of value `value`; `heads` > 1 if the graph sees them as [tokens, heads, dim]."""

    value: int
    start: int
    cols: int
    heads: int = 1


@dataclass
class Instruction:
    """One native operation.

    Attributes:
        kind: the operation's name in `NativeProgram`.
        node: where it comes from.
        inputs: values read, by argument name.
        out: the columns written, of most values all; those of a concatenation have a writer a part.
        options: everything else; parameters as `get_attr` nodes.
        absorbed: operators that fusion moved into this one, and where in it they run.
    """

    kind: str
    node: fx.Node
    inputs: dict[str, Columns]
    out: Columns
    options: dict[str, Any] = field(default_factory=dict)
    absorbed: dict[str, str] = field(default_factory=dict)


@dataclass
class InstructionList:
    """Instructions in order, the values filled from positions and features before each pass, and what they compute.

    Attributes:
        position_values: value → its columns, in the order of `position_graph`'s results.
        features: where a pass's features go, if the model takes any.
        hidden_states: in the order in which they were asked for.
        after_gather: values that have one row an output row.
    """

    instructions: list[Instruction]
    position_values: list[Columns]
    features: Columns | None
    logits: Columns
    hidden_states: list[Columns]
    after_gather: set[int]


class _Builder:
    def __init__(self, model: ModelGraph) -> None:
        self.model = model
        self.count = 0
        self.instructions: list[Instruction] = []
        self.after_gather: set[int] = set()

    def new(self, node: fx.Node) -> Columns:
        """A fresh value of the node's shape, [tokens, cols] or [tokens, heads, dim]."""
        shape = [int(dim) for dim in fake(node).shape[1:]]
        if not 1 <= len(shape) <= 2:
            raise UnsupportedOperator(f"{node.target} of shape {list(fake(node).shape)}")
        self.count += 1
        heads = shape[0] if len(shape) == 2 else 1
        return Columns(self.count - 1, 0, heads * shape[-1], heads)

    def run(self, graph: fx.Graph, env: dict[fx.Node, Any]) -> Any:
        """Append the instructions of a graph whose placeholders are bound in `env`; the binding of its output, or a tuple."""
        for node in graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], lambda one: env[one])
            if node in env or node.op == "placeholder":
                continue
            if node.op == "get_attr":
                env[node] = node
            elif node.op == "call_module":
                block = getattr(self.model.module, str(node.target))
                inner = {p: env.get(a, a) for p, a in zip(block.graph.find_nodes(op="placeholder"), node.args, strict=True)}
                env[node] = self.run(block.graph, inner)
            else:
                env[node] = self.call(node, env)
        raise AssertionError("a graph without an output")

    def call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        if node.target not in INSTRUCTIONS:
            raise UnsupportedOperator(str(node.target))
        bound = tuple(fx.node.map_arg(arg, lambda one: env.get(one, one)) for arg in node.args)
        return INSTRUCTIONS[node.target](self, node, bound)

    def append(self, operation: str, node: fx.Node, inputs: dict[str, Columns], out: Columns | None = None, **options: Any) -> Columns:
        for name, value in inputs.items():
            if not isinstance(value, Columns):
                raise UnsupportedOperator(f"{node.target} with {name} from {value}")
        out = self.new(node) if out is None else out
        if any(value.value in self.after_gather for value in inputs.values()) or operation == "gather_rows":
            self.after_gather.add(out.value)
        self.instructions.append(Instruction(operation, node, inputs, out, options))
        return out


def build_instructions(model: ModelGraph, frontier: list[fx.Node], computed: list[fx.Node]) -> InstructionList:
    """Turn a lowered graph into instructions.

    Args:
        model: the graph after the serving pipeline.
        frontier: nodes computed from positions that the rest reads.
        computed: all nodes computed from positions; they get no instruction.

    Raises:
        UnsupportedOperator: naming the first operator that has no native form.
    """
    builder = _Builder(model)
    env: dict[fx.Node, Any] = dict.fromkeys(computed, None)
    position_values = []
    for node in frontier:
        if not (fake(node).dim() and isinstance(fake(node).shape[0], torch.SymInt)):
            raise UnsupportedOperator(f"{node.target} of constants")
        env[node] = builder.new(node)
        position_values.append(env[node])
    features = None
    if model.feature_size:
        features = env[model.placeholder("features")] = builder.new(model.placeholder("features"))
    result = builder.run(model.graph, env)
    logits, *hidden_states = result if isinstance(result, tuple) else (result,)
    return InstructionList(builder.instructions, position_values, features, logits, hidden_states, builder.after_gather)


def _embedding(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if args[1] is not b.model.placeholder("token_ids"):
        raise UnsupportedOperator("embedding of something other than token ids")
    return b.append("embedding", node, {}, table=args[0])


def _linear(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("linear", node, {"x": args[0]}, weight=args[1], bias=args[2])


def _rms_norm(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("rms_norm", node, {"x": args[0]}, weight=args[1], eps=args[2], groups=args[0].heads)


def _layer_norm(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, shape, weight, bias, eps = (*args, None, None, 1e-5)[:5] if len(args) < 5 else args[:5]
    if not isinstance(x, Columns) or list(shape) != [x.cols // x.heads]:
        raise UnsupportedOperator(f"layer_norm over {list(shape)}")
    weight = torch.ones(x.cols // x.heads) if weight is None else weight
    return b.append("layer_norm", node, {"x": x}, weight=weight, bias=bias, eps=eps, groups=x.heads)


def _attention(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    names = [argument.name for argument in TREE_ATTENTION._schema.arguments]
    given = dict(zip(names, args, strict=True))
    if given["sinks"] is not None:
        raise UnsupportedOperator("tree_attention with sinks")
    inputs = {name: given[name] for name in ("q", "k", "v")}
    if given["cos"] is not None:
        inputs |= {"cos": given["cos"], "sin": given["sin"]}
    q, k = given["q"], given["k"]
    return b.append(
        "tree_attention",
        node,
        inputs,
        num_heads=q.heads,
        num_kv_heads=k.heads,
        head_dim=q.cols // q.heads,
        **{name: given[name] for name in ("layer", "scale", "window", "softcap", "slopes", "interleaved")},
    )


def _gate(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("gate", node, {"gate": args[0], "up": args[1]}, activation=args[2])


def _top_experts(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> list[Columns]:
    logits, top_k, normalised = args
    if not isinstance(logits, Columns) or logits.cols > MAX_EXPERTS:
        raise UnsupportedOperator(f"{node.target} of {logits}")
    b.count += 1
    both = Columns(b.count - 1, 0, 2 * top_k)  # weights, then ids as floats
    b.append("top_experts", node, {"logits": logits}, both, top_k=top_k, normalised=normalised)
    return [Columns(both.value, 0, top_k), Columns(both.value, top_k, top_k)]


def _routed_experts(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    given = dict(zip((argument.name for argument in ROUTED_EXPERTS._schema.arguments), args, strict=True))
    inputs = {name: given.pop(name) for name in ("x", "expert_ids", "expert_weights")}
    return b.append("routed_experts", node, inputs, **given)


def _activation(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    kinds = {_aten.silu.default: "silu", _aten.relu.default: "relu", _aten.gelu.default: "gelu", _aten.tanh.default: "tanh"}
    kind = kinds[node.target]  # type: ignore[index]
    if node.kwargs.get("approximate", "none") == "tanh":
        kind = "gelu_tanh"
    return b.append("activation", node, {"x": args[0]}, kind=kind)


def _binary(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    kind = "add" if node.target == _aten.add.Tensor else "mul"
    first, second = args
    if node.kwargs:
        raise UnsupportedOperator(f"{node.target} with {dict(node.kwargs)}")
    if isinstance(second, int | float):
        return b.append(f"{kind}_scalar", node, {"x": first}, value=float(second))
    if not (isinstance(first, Columns) and isinstance(second, Columns) and first.cols == second.cols):
        raise UnsupportedOperator(f"{node.target} with broadcasting")
    return b.append(kind, node, {"a": first, "b": second})


def _division(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if node.kwargs or not isinstance(args[1], int | float):
        raise UnsupportedOperator(f"{node.target} by something other than a number")
    return b.append("mul_scalar", node, {"x": args[0]}, value=1 / args[1])


def _gather(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if args[1] != 0 or args[2] is not b.model.placeholder("output_rows"):
        raise UnsupportedOperator("index_select of something other than the output rows")
    return b.append("gather_rows", node, {"x": args[0]})


def _cat(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    parts, dim = (*args, 0)[:2]
    if dim not in (1, -1) or not all(isinstance(part, Columns) and part.heads == 1 for part in parts):
        raise UnsupportedOperator(f"cat of dim {dim} of {parts}")
    whole, start = b.new(node), 0
    for part in parts:
        b.append("copy", node, {"x": part}, Columns(whole.value, start, part.cols))
        start += part.cols
    return whole


def _slice(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x = args[0]
    dim, start, end, step = args[1:] + (0, None, None, 1)[len(args) - 1 :]
    if not isinstance(x, Columns) or dim not in (1, -1) or x.heads != 1 or step != 1:
        raise UnsupportedOperator(f"slice of dim {dim}")
    start, end, _ = slice(start, end).indices(x.cols)
    return Columns(x.value, x.start + start, end - start)


def _reshape(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, shape = args
    if not isinstance(x, Columns) or not 2 <= len(shape) <= 3:
        raise UnsupportedOperator(f"reshape to {list(shape)}")
    return Columns(x.value, x.start, x.cols, int(shape[1]) if len(shape) == 3 else 1)


def _split(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> list[Columns]:
    x, sizes, dim = (*args, 0)[:3]
    if not isinstance(x, Columns) or dim not in (1, -1) or x.heads != 1:
        raise UnsupportedOperator(f"split of dim {dim}")
    widths = [min(sizes, x.cols - start) for start in range(0, x.cols, sizes)] if isinstance(sizes, int) else list(sizes)
    return [Columns(x.value, x.start + sum(widths[:i]), width) for i, width in enumerate(widths)]


def _chunk(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> list[Columns]:
    x, count, dim = (*args, 0)[:3]
    if not isinstance(x, Columns):
        raise UnsupportedOperator(f"chunk of {x}")
    return _split(b, node, (x, -(-x.cols // count), dim))


def _getitem(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Any:
    return args[0][args[1]]


def _repartition(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, start, length = args
    if not isinstance(x, Columns):
        raise UnsupportedOperator(f"repartition of {x}")
    width = x.cols // x.heads if fake(node).dim() == 3 else 1
    return Columns(x.value, x.start + start * width, length * width, length if fake(node).dim() == 3 else 1)


def _combine(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, widths, _ = args
    width = x.cols // x.heads if fake(node).dim() == 3 else 1
    return b.append("combine", node, {"x": x}, widths=[width * one for one in widths])


def _in_place(b: _Builder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    """What changes its operand's buffer: a copy's, which fusion lets the operand be written to if nothing else reads it."""
    copied = b.append("copy", node, {"x": args[0]})
    return b.append("reduce" if node.target == REDUCE else "replicate", node, {"x": copied}, copied)


# What has a native form: the lowering table of the target, one row an operator.
INSTRUCTIONS: dict[Any, Callable[[_Builder, fx.Node, tuple[Any, ...]], Any]] = {
    _aten.embedding.default: _embedding,
    PACKED_LINEAR: _linear,
    RMS_NORM: _rms_norm,
    _aten.layer_norm.default: _layer_norm,
    TREE_ATTENTION: _attention,
    GATED_ACTIVATION: _gate,
    TOP_EXPERTS: _top_experts,
    ROUTED_EXPERTS: _routed_experts,
    _aten.silu.default: _activation,
    _aten.relu.default: _activation,
    _aten.gelu.default: _activation,
    _aten.tanh.default: _activation,
    _aten.add.Tensor: _binary,
    _aten.mul.Tensor: _binary,
    _aten.div.Tensor: _division,
    _aten.index_select.default: _gather,
    _aten.cat.default: _cat,
    _aten.slice.Tensor: _slice,
    _aten.reshape.default: _reshape,
    _aten.split.Tensor: _split,
    _aten.split_with_sizes.default: _split,
    _aten.chunk.default: _chunk,
    operator.getitem: _getitem,
    REPARTITION: _repartition,
    COMBINE: _combine,
    REDUCE: _in_place,
    REPLICATE: _in_place,
}
