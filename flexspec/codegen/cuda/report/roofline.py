"""What each kernel must move and compute for one layer, and how long that takes a chip at the least."""

from dataclasses import dataclass

_Q_BYTES = 2  # bfloat16 activations
_FLOAT_BYTES = 4
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
        bytes_per_s: from memory.
        matrix_flops_per_s: bfloat16.
        exponentials_per_s: of its special function units.
        instructions_per_s: of threads.
    """

    name: str
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


_MULTIPROCESSORS = 132
_CLOCK_HZ = 1.83e9  # under load, of the H100: "FlashAttention-3" (Shah et al., 2024), section 2.2, 3.9 * 10**12 exponentials a second
H200 = Chip(
    name="H200",
    bytes_per_s=4.8e12,
    matrix_flops_per_s=790e12,
    exponentials_per_s=_MULTIPROCESSORS * 16 * _CLOCK_HZ,
    instructions_per_s=_MULTIPROCESSORS * 128 * _CLOCK_HZ,
)
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
    """Finding the best token of each node of a tree."""
    logits = nodes * layer.vocab
    return Work(moved_bytes=logits * _Q_BYTES, instructions=logits * NOISE_INSTRUCTIONS if with_noise else 0)


def residual_work(layer: LayerShape, *, nodes: int) -> Work:
    """Stochastic verification of nodes whose rows of p and q are read once, in float32: that of one trial each."""
    return Work(moved_bytes=nodes * 2 * layer.vocab * _FLOAT_BYTES)


def draft_top_work(layer: LayerShape, *, nodes: int, with_noise: bool) -> Work:
    """Finding the best children of each node of a level; a drafter has the model's vocabulary."""
    return verify_work(layer, nodes=nodes, with_noise=with_noise)


def free_tokens(layer: LayerShape, chip: Chip, *, cache_bytes: int) -> float:
    """Nodes of a tree below which attention over a long context waits for memory, so that they cost nothing.

    A slot takes 2·kv_heads·head_dim·cache_bytes of memory traffic and 4·tokens·heads·head_dim operations.
    """
    return layer.kv_heads * cache_bytes * chip.matrix_flops_per_s / (2 * layer.heads * chip.bytes_per_s)
