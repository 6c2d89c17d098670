"""The lowering table of the native target: the graph as instructions, and what has a native form."""

import operator
from typing import Any

import torch
from torch import fx

from flexspec.codegen.cpu import elementwise_rules as elementwise
from flexspec.codegen.cpu import operator_rules as operators
from flexspec.codegen.cpu import view_rules as views
from flexspec.codegen.cpu.instruction_builder import InstructionBuilder, Rule
from flexspec.codegen.cpu.instruction_list import InstructionList, UnsupportedOperator
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

# What has a native form: the lowering table of the target, one row an operator.
INSTRUCTIONS: dict[Any, Rule] = {
    _aten.embedding.default: operators.embedding,
    PACKED_LINEAR: operators.linear,
    RMS_NORM: operators.rms_norm,
    _aten.layer_norm.default: operators.layer_norm,
    TREE_ATTENTION: operators.attention,
    GATED_ACTIVATION: operators.gate,
    TOP_EXPERTS: operators.top_experts,
    ROUTED_EXPERTS: operators.routed_experts,
    _aten.silu.default: elementwise.activation,
    _aten.relu.default: elementwise.activation,
    _aten.gelu.default: elementwise.activation,
    _aten.tanh.default: elementwise.activation,
    _aten.sigmoid.default: elementwise.activation,
    _aten.expm1.default: elementwise.activation,
    _aten.square.default: elementwise.square,
    _aten.pow.Tensor_Scalar: elementwise.square,
    _aten.clamp.default: elementwise.clamp,
    _aten.min.other: elementwise.least,
    _aten.minimum.default: elementwise.least,
    _aten.max.other: elementwise.greatest,
    _aten.maximum.default: elementwise.greatest,
    _aten.gt.Scalar: elementwise.greater,
    _aten.where.self: elementwise.where,
    _aten.add.Tensor: elementwise.binary,
    _aten.mul.Tensor: elementwise.binary,
    _aten.sub.Tensor: elementwise.binary,
    _aten.div.Tensor: elementwise.binary,
    _aten.index_select.default: operators.gather,
    _aten.cat.default: views.cat,
    _aten.slice.Tensor: views.slice_columns,
    _aten.reshape.default: views.reshape,
    _aten.split.Tensor: views.split,
    _aten.split_with_sizes.default: views.split,
    _aten.chunk.default: views.chunk,
    operator.getitem: views.getitem,
    REPARTITION: views.repartition,
    COMBINE: operators.combine,
    REDUCE: operators.in_place,
    REPLICATE: operators.in_place,
}


def build_instructions(model: ModelGraph, frontier: list[fx.Node], computed: list[fx.Node]) -> InstructionList:
    """Turn a lowered graph into instructions.

    Args:
        model: the graph after the serving pipeline.
        frontier: nodes computed from positions that the rest reads.
        computed: all nodes computed from positions; they get no instruction.

    Raises:
        UnsupportedOperator: naming the first operator that has no native form.
    """
    builder = InstructionBuilder(model, INSTRUCTIONS)
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
