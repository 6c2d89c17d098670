"""The ordered pipelines. The order is the documentation."""

from flexspec.passes.attention_pattern import recognise_attention
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.complex_numbers import take_complex_apart
from flexspec.passes.composites import write_out_composites
from flexspec.passes.constant_index import simplify_moves
from flexspec.passes.expert_weights import take_expert_weights
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.fold_constants import fold_constants
from flexspec.passes.fuse_linears import fuse_linears
from flexspec.passes.gated_mlp import recognise_gated_mlp, recognise_gelu
from flexspec.passes.head_sizes import equal_head_sizes
from flexspec.passes.linear_bias import fold_bias
from flexspec.passes.loose_rope import write_out_loose_rope
from flexspec.passes.manager import Pass
from flexspec.passes.norm import recognise_norm
from flexspec.passes.normalize_linear import normalize_linear
from flexspec.passes.outer_product import outer_product
from flexspec.passes.outline import outline
from flexspec.passes.output_rows import output_rows
from flexspec.passes.pack import pack_linears
from flexspec.passes.positions_from_length import positions_from_length
from flexspec.passes.query_scale import fold_query_scale
from flexspec.passes.rope import recognise_rope
from flexspec.passes.rope_of_halves import recognise_rope_of_halves
from flexspec.passes.routing import recognise_routing
from flexspec.passes.share_position_values import share_position_values
from flexspec.passes.split_linears import split_linears
from flexspec.passes.tokenwise import prove_tokenwise
from flexspec.passes.tree_attention import lower_attention

# [batch, tokens] graph → flat tokens, with every composite operator recognised; still one causal sequence. A graph that is divided over
# devices is cut into stages and shards here.
FLAT: tuple[Pass, ...] = (
    fold_constants,  # einsum goes by which operands are parameters, and leaves moved ones to the second time
    write_out_composites,
    take_complex_apart,
    canonicalize,
    fold_constants,
    simplify_moves,
    take_expert_weights,
    recognise_attention,
    positions_from_length,
    outer_product,
    flatten_tokens,
    normalize_linear,
    fold_bias,
    recognise_norm,
    recognise_rope_of_halves,
    recognise_rope,
    share_position_values,
    recognise_gelu,
    recognise_gated_mlp,
    recognise_routing,
    equal_head_sizes,
    fold_query_scale,
    split_linears,
)

# What a device has of the graph, in few and large linears.
FUSION: tuple[Pass, ...] = (fuse_linears,)

RECOGNITION: tuple[Pass, ...] = (*FLAT, *FUSION)

# Flat causal sequence → KV slots and tree tails, one block a structural kind, proved token-wise; ready for code generation.
SERVING: tuple[Pass, ...] = (write_out_loose_rope, lower_attention, output_rows, pack_linears, outline, prove_tokenwise)

# The same for a pipeline stage before the last, which gives the residual stream of all tokens.
SERVING_STAGE: tuple[Pass, ...] = tuple(one for one in SERVING if one is not output_rows)
