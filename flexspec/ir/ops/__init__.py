"""The dialect operators: one file each, with schema, fake and plain PyTorch reference."""

from flexspec.ir.ops.attention import ATTENTION
from flexspec.ir.ops.gated_activation import ACTIVATIONS, GATED_ACTIVATION
from flexspec.ir.ops.packed_linear import PACKED_LINEAR
from flexspec.ir.ops.parallel import COMBINE, REDUCE, REPARTITION, REPLICATE
from flexspec.ir.ops.rms_norm import RMS_NORM
from flexspec.ir.ops.rope import ROPE
from flexspec.ir.ops.routed_experts import ROUTED_EXPERTS
from flexspec.ir.ops.top_experts import TOP_EXPERTS
from flexspec.ir.ops.tree_attention import TREE_ATTENTION

__all__ = [
    "ACTIVATIONS",
    "ATTENTION",
    "COMBINE",
    "GATED_ACTIVATION",
    "PACKED_LINEAR",
    "REDUCE",
    "REPARTITION",
    "REPLICATE",
    "RMS_NORM",
    "ROPE",
    "ROUTED_EXPERTS",
    "TOP_EXPERTS",
    "TREE_ATTENTION",
]
