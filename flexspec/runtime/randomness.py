"""Noise that is a function of its key alone, so that what shares a batch never changes a request's text."""

import math
import secrets

import numpy as np
import numpy.typing as npt

from flexspec.runtime.distribution import Float64

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]

GUMBEL_STREAM = 0
"""Noise over the vocabulary, one number a token id and position."""
VERIFIER_STREAM = 1
"""Accept-or-reject decisions and draws of stochastic verifiers; traversal verification takes the streams after it too, one a visit."""
DRAFTER_STREAMS = 1 << 32
"""The first of the streams that drafters draw children from; drafter streams are this plus a 32-bit number."""

MAX_GUMBEL = 53 * math.log(2.0)
"""No noise is larger: the smallest uniform is 2**-53."""

_WORDS = 4
"""64-bit numbers in a Philox block."""
_MERGE_GAP = 384
"""Ids closer than this are generated in one run: a jump costs about as much as so many numbers (measured)."""


def fresh_seed() -> int:
    """A 64-bit seed that nobody can predict."""
    return secrets.randbits(64)


class KeyedNoise:
    """Philox 4x64-10 keyed by (seed, completion) and addressed by (word, index, stream).

    The number of word w is lane w % 4 of the block with counter (w // 4, index, stream, 0): it can be had alone, in any
    order, on any device (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

    Args:
        seed: 0 to 2**64 - 1.
        completion: which of the completions of one prompt this is.
    """

    def __init__(self, seed: int, completion: int = 0) -> None:
        self._philox = np.random.Philox(key=np.array([seed, completion], dtype=np.uint64))
        self._state = self._philox.state
        self._counter: UInt64 = self._state["state"]["counter"]

    def bits(self, start: int, count: int, *, index: int, stream: int) -> UInt64:
        """[count] raw 64-bit numbers of the words start … start + count - 1."""
        block, lane = divmod(start, _WORDS)
        self._seek(block, index, stream)
        raw: UInt64 = self._philox.random_raw(lane + count)
        return raw[lane:]

    def gumbel_bits(self, ids: Int64, *, index: int) -> UInt64:
        """[k] raw numbers behind the noise of the ascending token ids `ids` at text position `index`."""
        raw = np.empty(len(ids), dtype=np.uint64)
        cuts = np.flatnonzero(np.diff(ids) > _MERGE_GAP) + 1
        starts = [0, *cuts.tolist()]
        for first, last in zip(starts, [*starts[1:], len(ids)], strict=True):
            run = ids[first:last]
            low = int(run[0])
            if last - first == 1:
                raw[first] = self._one(low, index)
            else:
                raw[first:last] = self.bits(low, int(run[-1]) - low + 1, index=index, stream=GUMBEL_STREAM)[run - low]
        return raw

    def gumbel(self, ids: Int64, *, index: int) -> Float64:
        """[k] standard Gumbel noise of the ascending token ids `ids` at text position `index`."""
        return to_gumbel(self.gumbel_bits(ids, index=index)) if len(ids) else np.empty(0, dtype=np.float64)

    def _one(self, word: int, index: int) -> int:
        block, lane = divmod(word, _WORDS)
        self._seek(block, index, GUMBEL_STREAM)
        for _ in range(lane):
            self._philox.random_raw()
        return int(self._philox.random_raw())

    def _seek(self, block: int, index: int, stream: int) -> None:
        # NumPy increments the 256-bit counter before it makes a block, so it is set to one less, with borrow.
        counter = self._counter
        if block:
            counter[0], counter[1], counter[2], counter[3] = block - 1, index, stream, 0
        else:
            before = (index << 64 | stream << 128) - 1
            for word in range(_WORDS):
                counter[word] = before >> (64 * word) & 0xFFFFFFFFFFFFFFFF
        self._philox.state = self._state


def to_uniform(raw: UInt64) -> Float64:
    """Uniform numbers in [0, 1) from the upper 53 bits of raw ones."""
    uniform: Float64 = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def to_gumbel(raw: UInt64) -> Float64:
    """Standard Gumbel noise -log(-log(1 - u)), u from 53 bits; a zero counts as the smallest other uniform."""
    uniform = np.maximum(to_uniform(raw), 2.0**-53)
    noise: Float64 = -np.log(-np.log1p(-uniform))
    return noise


def bits_above(noise: float) -> int:
    """A bound that the raw number behind every Gumbel noise greater than `noise` stays below."""
    # The smaller the number, the larger its noise. The slack covers the rounding of the logarithms.
    uniform = -math.expm1(-math.exp(-max(noise, -5.0)))
    return min(int((uniform * (1 + 1e-9) + 2.0**-51) * 2.0**64), 2**64 - 1)
