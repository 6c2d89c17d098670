"""Compaction of accepted paths in the paged cache: whole slots move, over all layers in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options
from flexspec.codegen.cuda.targets import GpuTarget

_CHUNK = 128
"""32-bit words of a slot that a program moves: 16 bytes for each of 32 threads."""
_MOVES = 16
"""Moves that a program loads at once."""
_WORD_BYTES = 4
_ALIGNMENT = 16
"""Bytes that a thread loads at once."""


# What is awaited where, and why that is enough:
# - A word of a slot is read and written by the one program that has its layer and its chunk of the slot, for all moves, so
#   programs need not wait for each other.
# - A program goes through the moves in order, a batch at a time. A batch's loads may follow an earlier batch's stores: no
#   source is the destination of an earlier move, since within a request destination <= source < every later source (logical
#   slots, but different ones lie in different places), and requests share no slots.
# - A batch's stores must follow its own loads and those before, since a destination may be the source of the same or of an
#   earlier move, which another thread loads. So a program is a single warp: its memory instructions are issued one after the
#   other for all of its threads, and the barrier keeps them in this order where threads of a warp go their own ways. A
#   barrier alone would not do for several warps: AMD's makes none wait for loads that are on their way.
@triton.jit(do_not_specialize=["layer_units", "slot_units", "num_moves"], do_not_specialize_on_alignment=["sources", "destinations"])
def kv_commit_kernel(
    keys,  # [layers, slots, words]
    values,
    sources,  # [num_moves]
    destinations,
    layer_units,
    slot_units,
    num_moves,
    MOVES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    # Sizes come in units of 4 words, so that the compiler knows how addresses are aligned. int64: a cache is large.
    layer = tl.program_id(1).to(tl.int64) * layer_units * 4
    words = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)[None, :]
    in_slot = words < slot_units * 4
    for start in range(0, num_moves, MOVES):
        moves = start + tl.arange(0, MOVES)[:, None]
        source = tl.load(sources + moves, mask=moves < num_moves, other=-1)
        destination = tl.load(destinations + moves, mask=moves < num_moves, other=-1)
        is_moved = (source >= 0) & (destination >= 0) & (source != destination) & in_slot
        read = layer + source.to(tl.int64) * slot_units * 4 + words
        written = layer + destination.to(tl.int64) * slot_units * 4 + words
        key = tl.load(keys + read, mask=is_moved)
        value = tl.load(values + read, mask=is_moved)
        tl.debug_barrier()
        tl.store(keys + written, key, mask=is_moved)
        tl.store(values + written, value, mask=is_moved)


def kv_commit(keys: Tensor, values: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy slots over all layers as if all sources were read before any destination is written.

    Moves of one request go to lower or equal logical slots, sources ascending; a destination may be the source of an earlier
    move of the same request. Different requests share no slots.

    Args:
        keys: [layers, slots, kv_heads, head_dim] of any type, contiguous.
        values: as `keys`.
        sources: [n] int32 physical slots; -1 for no move.
        destinations: [n] int32 physical slots; -1 for no move.

    Raises:
        UncoveredCase: if a slot is no multiple of 16 bytes, or the cache begins at none.
    """
    num_layers, num_slots, kv_heads, head_dim = keys.shape
    assert keys.is_contiguous() and values.is_contiguous() and keys.shape == values.shape and keys.dtype == values.dtype
    slot_bytes = kv_heads * head_dim * keys.element_size()
    if slot_bytes % _ALIGNMENT or keys.data_ptr() % _ALIGNMENT or values.data_ptr() % _ALIGNMENT:
        raise UncoveredCase(
            f"kv_commit of slots of {kv_heads} x {head_dim} x {keys.dtype} at {keys.data_ptr():#x} and {values.data_ptr():#x}: slots have "
            f"to be multiples of {_ALIGNMENT} bytes and to begin at one"
        )
    if not len(sources):
        return
    grid = (triton.cdiv(slot_bytes // _WORD_BYTES, _CHUNK), num_layers)
    units = slot_bytes // _ALIGNMENT
    assert num_slots * units < 1 << 31, f"a layer of {num_slots} slots of {slot_bytes} bytes: a size that has 32 bits"
    kv_commit_kernel[grid](
        *(keys.view(torch.int32), values.view(torch.int32), sources, destinations),
        *(num_slots * units, units, len(sources)),
        MOVES=_MOVES,
        CHUNK=_CHUNK,
        **launch_options(1, 1),
    )


def kv_commit_variants(target: GpuTarget) -> list[KernelVariant]:
    """The one specialisation: to what moves, all types of caches are words."""
    return [
        KernelVariant(
            kernel="kv_commit",
            case="any type",
            function=kv_commit_kernel,
            signature={
                **{name: "*i32" for name in ("keys", "values", "sources", "destinations")},
                **{name: "i32" for name in ("layer_units", "slot_units", "num_moves")},
                **{name: "constexpr" for name in ("MOVES", "CHUNK")},
            },
            constants={"MOVES": _MOVES, "CHUNK": _CHUNK},
            divisible=frozenset({"keys", "values"}),
            num_warps=1,
            num_stages=1,
        )
    ]


def kv_commit_reference(keys: Tensor, values: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """As `kv_commit`, of moves in any order."""
    kept = (sources >= 0) & (destinations >= 0)
    source, destination = sources[kept].long(), destinations[kept].long()
    for cache in (keys, values):
        # As bytes: not everything can be done with 8-bit floats.
        numbers = cache.view(torch.uint8)
        numbers.index_copy_(1, destination, numbers.index_select(1, source))
