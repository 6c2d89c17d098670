"""Native instructions of the operators that compute."""

from typing import Any

import torch
from torch import fx

from flexspec.codegen.cpu.instruction_builder import InstructionBuilder
from flexspec.codegen.cpu.instruction_list import Columns, UnsupportedOperator
from flexspec.ir.graph import fake
from flexspec.ir.ops import REDUCE, ROUTED_EXPERTS, TREE_ATTENTION

_aten = torch.ops.aten

MAX_EXPERTS = 1024
"""As many as the native kernel of `flexspec::top_experts` can choose from."""


def embedding(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if args[1] is not b.model.placeholder("token_ids"):
        raise UnsupportedOperator("embedding of something other than token ids")
    return b.append("embedding", node, {}, table=args[0])


def linear(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("linear", node, {"x": args[0]}, weight=args[1], bias=args[2])


def rms_norm(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("rms_norm", node, {"x": args[0]}, weight=args[1], eps=args[2], groups=args[0].heads)


def layer_norm(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    defaults = (None, None, 1e-5)
    x, shape, weight, bias, eps = (*args, *defaults[len(args) - 2 :])[:5]
    if not isinstance(x, Columns) or list(shape) != [x.cols // x.heads]:
        raise UnsupportedOperator(f"layer_norm over {list(shape)}")
    weight = torch.ones(x.cols // x.heads) if weight is None else weight
    return b.append("layer_norm", node, {"x": x}, weight=weight, bias=bias, eps=eps, groups=x.heads)


def attention(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    names = [argument.name for argument in TREE_ATTENTION._schema.arguments]
    given = dict(zip(names, args, strict=True))
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
        **{name: given[name] for name in ("layer", "scale", "window", "softcap", "sinks", "slopes", "interleaved")},
    )


def gate(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    return b.append("gate", node, {"gate": args[0], "up": args[1]}, activation=args[2])


def top_experts(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> list[Columns]:
    logits, top_k, normalised = args
    if not isinstance(logits, Columns) or logits.cols > MAX_EXPERTS:
        raise UnsupportedOperator(f"{node.target} of {logits}")
    b.count += 1
    both = Columns(b.count - 1, 0, 2 * top_k)  # weights, then ids as floats
    b.append("top_experts", node, {"logits": logits}, both, top_k=top_k, normalised=normalised)
    return [Columns(both.value, 0, top_k), Columns(both.value, top_k, top_k)]


def routed_experts(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    given = dict(zip((argument.name for argument in ROUTED_EXPERTS._schema.arguments), args, strict=True))
    inputs = {name: given.pop(name) for name in ("x", "expert_ids", "expert_weights")}
    return b.append("routed_experts", node, inputs, **given)


def gather(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    if args[1] != 0 or args[2] is not b.model.placeholder("output_rows"):
        raise UnsupportedOperator("index_select of something other than the output rows")
    return b.append("gather_rows", node, {"x": args[0]})


def combine(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, widths, _ = args
    width = x.cols // x.heads if fake(node).dim() == 3 else 1
    return b.append("combine", node, {"x": x}, widths=[width * one for one in widths])


def in_place(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    """What changes its operand's buffer: a copy's, which fusion lets the operand be written to if nothing else reads it."""
    copied = b.append("copy", node, {"x": args[0]})
    return b.append("reduce" if node.target == REDUCE else "replicate", node, {"x": copied}, copied)
