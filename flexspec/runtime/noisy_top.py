"""The best tokens by score and noise, of all there are."""

import numpy as np
import numpy.typing as npt

from flexspec.runtime.distribution import Float64
from flexspec.runtime.randomness import GUMBEL_STREAM, MAX_GUMBEL, KeyedNoise, bits_above, to_gumbel

Int64 = npt.NDArray[np.int64]

_FIRST_SPREAD = 6.0
"""How far below the likeliest token, in units of log probability, the search starts."""


def noisy_top(
    noise: KeyedNoise, scores: Float64, k: int, alpha: float, index: int, token_ids: Int64 | None = None
) -> tuple[Int64, Float64]:
    """Places of the best `k` by score + alpha * noise, and these; a number is drawn for every token, few logarithms taken.

    Args:
        noise: the request's.
        scores: [vocab] tempered log probabilities, the largest 0; minus infinity for what is banned.
        k: how many.
        alpha: weight of the noise, above 0.
        index: position in the text.
        token_ids: [vocab or more] ascending, the token of each score; None for 0, 1, 2, …
    """
    if token_ids is None:
        raw = noise.bits(0, len(scores), index=index, stream=GUMBEL_STREAM)
    else:
        raw = noise.gumbel_bits(token_ids[: len(scores)], index=index)
    spread = _FIRST_SPREAD
    near = np.flatnonzero(scores >= -spread)
    if len(near) < k:
        k = min(k, int(np.count_nonzero(scores > -np.inf)))
    while len(near) < k:
        spread *= 2
        near = np.flatnonzero(scores >= -spread)
    reached = np.partition(scores[near] + alpha * to_gumbel(raw[near]), len(near) - k)[len(near) - k]
    # Any other token starts below -spread, so only a noise above this can lift it past the k-th best.
    needed = (float(reached) + spread) / alpha
    far = np.flatnonzero((raw < np.uint64(bits_above(needed))) & (scores < -spread)) if needed < MAX_GUMBEL else near[:0]
    ids = np.union1d(near, far)
    noisy = scores[ids] + alpha * to_gumbel(raw[ids])
    order = np.argsort(-noisy, kind="stable")[:k]
    return ids[order], noisy[order]
