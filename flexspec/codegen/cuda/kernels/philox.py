"""Numbers and Gumbel noise that are functions of their keys alone, the same on device and host.

Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the number of word w is lane w % 4
of the block with counter (w // 4, index, stream, 0) and key (seed, completion). A block of four words costs twenty wide
multiplications, so whatever needs the words of adjacent token ids takes all four lanes of each block.
"""

import numpy as np
import numpy.typing as npt
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl

from flexspec.codegen.cuda.kernels.variant import KernelVariant, launch_options
from flexspec.codegen.cuda.targets import GpuTarget

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

_LANES = 4
_BLOCKS = 64
"""Philox blocks that a program of the noise kernel makes."""
_NUM_WARPS = 4
_NUM_STAGES = 2
_SMALLEST = 2.0**-53
"""The smallest uniform number that noise is made of, and the step between two."""
_STEP = tl.constexpr(_SMALLEST)


@triton.jit
def philox_words(blocks, index, stream, seed, completion):
    """Four uint64 tensors, lanes 0 … 3 of `blocks` (integers of any shape); the other arguments are integers or of that shape."""
    first = blocks.to(tl.uint64)
    zeros = first * 0
    return philox_impl(first, zeros + index, zeros + stream, zeros, zeros + seed, zeros + completion)


@triton.jit
def adjacent_words(first_block, index, stream, seed, completion, COUNT: tl.constexpr):
    """[COUNT] uint64, the words 4 * first_block and on; COUNT is a power of two."""
    blocks = first_block + tl.arange(0, COUNT // 4)
    word0, word1, word2, word3 = philox_words(blocks, index, stream, seed, completion)
    return tl.interleave(tl.interleave(word0, word2), tl.interleave(word1, word3))


@triton.jit
def to_uniform(raw):
    """Uniform float64 numbers in [0, 1) from the upper 53 bits of raw ones."""
    return (raw >> 11).to(tl.float64) * _STEP


@triton.jit
def to_gumbel(raw):
    """Standard Gumbel noise in float64; a zero counts as the smallest other uniform number."""
    uniform = tl.maximum(to_uniform(raw), _STEP)
    # A uniform number is a multiple of 2**-53, so 1 - uniform is exact and its logarithm as good as log1p(-uniform).
    return -tl.log(-tl.log(1.0 - uniform))


@triton.jit(
    do_not_specialize=["first", "count", "first_block"],
    do_not_specialize_on_alignment=["seeds", "completions", "indices", "streams", "raw", "noise"],
)
def keyed_noise_kernel(seeds, completions, indices, streams, raw, noise, first, count, first_block, BLOCKS: tl.constexpr):
    row = tl.program_id(1)
    block = first_block + tl.program_id(0) * BLOCKS
    seed = tl.load(seeds + row)
    completion = tl.load(completions + row)
    words = adjacent_words(block, tl.load(indices + row), tl.load(streams + row), seed, completion, 4 * BLOCKS)
    places = 4 * block + tl.arange(0, 4 * BLOCKS) - first
    kept = (places >= 0) & (places < count)
    start = row.to(tl.int64) * count
    tl.store(raw + start + places, words.to(tl.int64, bitcast=True), mask=kept)
    tl.store(noise + start + places, to_gumbel(words), mask=kept)


def keyed_noise(seeds: Tensor, completions: Tensor, indices: Tensor, streams: Tensor, *, first: int, count: int) -> tuple[Tensor, Tensor]:
    """The raw numbers of the words first … first + count - 1, and the Gumbel noise made of them.

    Args:
        seeds: [R] int64 or uint64; an int64 stands for its bits.
        completions: [R] int32.
        indices: [R] int32, text positions.
        streams: [R] int64.
        first: the first word, for noise the first token id.
        count: how many.

    Returns:
        [R, count] int64, the raw numbers' bits, and [R, count] float64.
    """
    raw = torch.empty((len(seeds), count), dtype=torch.int64, device=seeds.device)
    noise = torch.empty((len(seeds), count), dtype=torch.float64, device=seeds.device)
    first_block = first // _LANES
    blocks = (first + count - 1) // _LANES - first_block + 1
    grid = (triton.cdiv(blocks, _BLOCKS), len(seeds))
    arguments = (signed(seeds), completions, indices, streams, raw, noise, first, count, first_block)
    keyed_noise_kernel[grid](*arguments, BLOCKS=_BLOCKS, **launch_options(_NUM_WARPS, _NUM_STAGES))
    return raw, noise


def keyed_noise_variants(target: GpuTarget) -> list[KernelVariant]:
    """The one specialisation of the noise kernel."""
    pointers = {"seeds": "*i64", "completions": "*i32", "indices": "*i32", "streams": "*i64", "raw": "*i64", "noise": "*fp64"}
    return [
        KernelVariant(
            kernel="keyed_noise",
            case="float64",
            function=keyed_noise_kernel,
            signature={**pointers, "first": "i32", "count": "i32", "first_block": "i32", "BLOCKS": "constexpr"},
            constants={"BLOCKS": _BLOCKS},
            num_warps=_NUM_WARPS,
            num_stages=_NUM_STAGES,
        )
    ]


def keyed_noise_reference(
    seeds: Tensor, completions: Tensor, indices: Tensor, streams: Tensor, *, first: int, count: int
) -> tuple[Tensor, Tensor]:
    """As `keyed_noise`, by NumPy's Philox."""
    raw, noise = [], []
    for key in zip(signed(seeds).tolist(), completions.tolist(), indices.tolist(), streams.tolist(), strict=True):
        seed, completion, index, stream = key
        words = words_reference(seed % 2**64, completion, index=index, stream=stream, first=first, count=count)
        raw.append(torch.from_numpy(words.view(np.int64)))
        noise.append(torch.from_numpy(gumbel_reference(words)))
    return torch.stack(raw), torch.stack(noise)


def words_reference(seed: int, completion: int, *, index: int, stream: int, first: int, count: int) -> UInt64:
    """[count] raw numbers of the words from `first` on."""
    block, lane = divmod(first, _LANES)
    # NumPy increments the 256-bit counter before it makes a block.
    counter = ((block | index << 64 | stream << 128) - 1) % 2**256
    raw: UInt64 = np.random.Philox(counter=counter, key=seed | completion << 64).random_raw(lane + count)
    return raw[lane:]


def gumbel_reference(raw: UInt64) -> Float64:
    """Standard Gumbel noise of raw numbers."""
    uniform = np.maximum((raw >> np.uint64(11)).astype(np.float64) * _SMALLEST, _SMALLEST)
    noise: Float64 = -np.log(-np.log1p(-uniform))
    return noise


def signed(seeds: Tensor) -> Tensor:
    """Seeds as int64 numbers of the same bits."""
    return seeds.view(torch.int64)
