"""What each kernel must move and compute for one layer, and how long that takes a chip at the least."""

from dataclasses import dataclass

from flexspec.codegen.cuda.tiles import block_tokens

_Q_BYTES = 2  # bfloat16 activations
_FLOAT_BYTES = 4
_DOUBLE_BYTES = 8
_INT_BYTES = 4

NOISE_INSTRUCTIONS = 375
"""What the Gumbel noise of a token takes in code for sm_90: ten rounds of Philox for each four tokens, two float64 logarithms for each."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """Lower limits of one launch.

    Attributes:
        moved_bytes: between the chip and its memory, everything once.
        matrix_flops: operations of the matrix units; a multiplication and an addition are two.
        exponentials: of softmax.
        instructions: of threads, where there are enough of them to matter.
    """

    moved_bytes: int
    matrix_flops: int = 0
    exponentials: int = 0
    instructions: int = 0


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What a GPU does in a second.

    Attributes:
        name: as its vendor calls it.
        multiprocessors: what programs are divided among; each has its share of everything.
        bytes_per_s: from memory.
        matrix_flops_per_s: bfloat16.
        exponentials_per_s: of its special function units.
        instructions_per_s: of threads.
    """

    name: str
    multiprocessors: int
    bytes_per_s: float
    matrix_flops_per_s: float
    exponentials_per_s: float
    instructions_per_s: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The resource that takes longest, and how long: a launch can't be shorter.

    Attributes:
        resource: "memory", "matrix units", "exponentials" or "instructions".
        seconds: how long it is busy.
    """

    resource: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """Sizes of a model's layer, and of what surrounds its layers.

    Attributes:
        heads: query heads.
        kv_heads: heads of keys and values.
        head_dim: of both.
        layers: how many.
        vocab: tokens.
    """

    heads: int
    kv_heads: int
    head_dim: int
    layers: int
    vocab: int


_EXPONENTIALS_A_CLOCK = 16
_LANES = 128


def _chip(name: str, *, multiprocessors: int, clock_hz: float, bytes_per_s: float, matrix_flops_per_s: float) -> Chip:
    """Exponentials and instructions follow from the clock: of all these chips a multiprocessor does as many in one."""
    return Chip(
        name=name,
        multiprocessors=multiprocessors,
        bytes_per_s=bytes_per_s,
        matrix_flops_per_s=matrix_flops_per_s,
        exponentials_per_s=multiprocessors * _EXPONENTIALS_A_CLOCK * clock_hz,
        instructions_per_s=multiprocessors * _LANES * clock_hz,
    )


# The clock under load is that of the H100: "FlashAttention-3" (Shah et al., 2024), section 2.2, 3.9 * 10**12 exponentials a second.
H200 = _chip("H200", multiprocessors=132, clock_hz=1.83e9, bytes_per_s=4.8e12, matrix_flops_per_s=790e12)
# One of each target, about as their vendors' data sheets have them.
CHIPS = (
    _chip("A100", multiprocessors=108, clock_hz=1.41e9, bytes_per_s=2.039e12, matrix_flops_per_s=312e12),
    H200,
    _chip("B200", multiprocessors=148, clock_hz=1.85e9, bytes_per_s=8e12, matrix_flops_per_s=2250e12),
    _chip("MI300X", multiprocessors=304, clock_hz=2.1e9, bytes_per_s=5.3e12, matrix_flops_per_s=1307e12),
)
LAUNCH_S = 1e-6
"""What a further kernel of a captured graph takes besides its work; assumed, to be measured."""
LAYER_7B = LayerShape(heads=32, kv_heads=8, head_dim=128, layers=32, vocab=128_256)


def bound(work: Work, chip: Chip) -> Bound:
    """What bounds a launch on a chip whose units all work at once."""
    seconds = {
        "memory": work.moved_bytes / chip.bytes_per_s,
        "matrix units": work.matrix_flops / chip.matrix_flops_per_s,
        "exponentials": work.exponentials / chip.exponentials_per_s,
        "instructions": work.instructions / chip.instructions_per_s,
    }
    resource = max(seconds, key=seconds.__getitem__)
    return Bound(resource=resource, seconds=seconds[resource])


def attention_work(layer: LayerShape, *, tokens: int, context: int, cache_bytes: int, num_splits: int = 1) -> Work:
    """Tree attention of one request: `tokens` tree nodes over `context` committed slots and their own.

    Args:
        layer: its shape.
        tokens: nodes of the tree.
        context: committed slots.
        cache_bytes: of a cached number: 2 for bfloat16, 1 for 8-bit floats.
        num_splits: parts of the keys; above one, partial results go to memory in float32.
    """
    slots = context + tokens
    kv = 2 * slots * layer.kv_heads * layer.head_dim * cache_bytes
    queries = tokens * layer.heads * layer.head_dim * _Q_BYTES
    bit_rows = tokens * -(-tokens // 32) * _INT_BYTES
    written = queries if num_splits == 1 else partial_bytes(layer, tokens=tokens, num_splits=num_splits)
    return Work(
        moved_bytes=kv + queries + bit_rows + written,
        matrix_flops=4 * tokens * layer.heads * layer.head_dim * slots,
        exponentials=tokens * layer.heads * slots,
    )


def split_seconds(layer: LayerShape, chip: Chip, *, tokens: int, context: int, cache_bytes: int, num_splits: int) -> float:
    """What attention of one request in so many parts takes at the least, reduction included, each program on a multiprocessor.

    Args:
        layer: its shape.
        chip: whose multiprocessors share the programs: one for each tile of queries, KV head and part.
        tokens: nodes of the tree.
        context: committed slots.
        cache_bytes: of a cached number.
        num_splits: parts of the keys; one takes no reduction.
    """
    num_tiles = -(-tokens // block_tokens(layer.heads, layer.kv_heads, tokens))
    programs = num_tiles * layer.kv_heads * num_splits
    turns = -(-programs // chip.multiprocessors)
    idle = turns * chip.multiprocessors / programs
    work = attention_work(layer, tokens=tokens, context=context, cache_bytes=cache_bytes, num_splits=num_splits)
    reduction = 0.0 if num_splits == 1 else LAUNCH_S + bound(combine_work(layer, tokens=tokens, num_splits=num_splits), chip).seconds
    return idle * bound(work, chip).seconds + reduction


def partial_bytes(layer: LayerShape, *, tokens: int, num_splits: int) -> int:
    """Size of the partial results of split attention: of each part, a row and the logarithm of its sum."""
    return num_splits * tokens * layer.heads * (layer.head_dim + 1) * _FLOAT_BYTES


def combine_work(layer: LayerShape, *, tokens: int, num_splits: int) -> Work:
    """Adding up the partial results of split attention."""
    rows = tokens * layer.heads
    return Work(
        moved_bytes=partial_bytes(layer, tokens=tokens, num_splits=num_splits) + rows * layer.head_dim * _Q_BYTES,
        exponentials=rows * num_splits,
    )


def rope_write_work(layer: LayerShape, *, tokens: int, cache_bytes: int) -> Work:
    """Rotating queries and keys, and writing keys and values to the cache."""
    kv = 2 * layer.kv_heads * layer.head_dim
    q = layer.heads * layer.head_dim
    tables = 2 * layer.head_dim * _FLOAT_BYTES + 2 * _INT_BYTES
    return Work(moved_bytes=tokens * ((2 * q + kv) * _Q_BYTES + kv * cache_bytes + tables))


def commit_work(layer: LayerShape, *, moved: int, cache_bytes: int) -> Work:
    """Moving the slots of an accepted path together, in all layers."""
    return Work(moved_bytes=moved * (2 * 2 * layer.layers * layer.kv_heads * layer.head_dim * cache_bytes + 2 * _INT_BYTES))


def verify_work(layer: LayerShape, *, nodes: int, with_noise: bool) -> Work:
    """Finding the best token of each node of a tree, whose logits passes give in float32."""
    logits = nodes * layer.vocab
    return Work(moved_bytes=logits * _FLOAT_BYTES, instructions=logits * NOISE_INSTRUCTIONS if with_noise else 0)


def truncate_work(layer: LayerShape, *, nodes: int) -> Work:
    """Finding what top_k, top_p and min_p keep of each node's tokens."""
    return Work(moved_bytes=nodes * layer.vocab * _FLOAT_BYTES)


def probabilities_work(layer: LayerShape, *, nodes: int) -> Work:
    """The softmax of each node's logits, in float64."""
    return Work(moved_bytes=nodes * layer.vocab * (_FLOAT_BYTES + _DOUBLE_BYTES))


def residual_work(layer: LayerShape, *, nodes: int) -> Work:
    """Stochastic verification of nodes whose rows of p and q are read once, in float64: that of one trial each."""
    return Work(moved_bytes=nodes * 2 * layer.vocab * _DOUBLE_BYTES)


def draft_top_work(layer: LayerShape, *, nodes: int, with_noise: bool) -> Work:
    """Finding the best children of each node of a level; a drafter has the model's vocabulary."""
    return verify_work(layer, nodes=nodes, with_noise=with_noise)


def free_tokens(layer: LayerShape, chip: Chip, *, cache_bytes: int) -> float:
    """Nodes of a tree below which attention over a long context waits for memory, so that they cost nothing.

    A slot takes 2·kv_heads·head_dim·cache_bytes of memory traffic and 4·tokens·heads·head_dim operations.
    """
    return layer.kv_heads * cache_bytes * chip.matrix_flops_per_s / (2 * layer.heads * chip.bytes_per_s)
