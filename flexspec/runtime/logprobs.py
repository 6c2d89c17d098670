"""Log probabilities of tokens under the model's own distribution."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from flexspec.runtime.sampling import NonFiniteLogitsError

_Float32 = npt.NDArray[np.float32]
_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class TokenLogprobs:
    """How likely a token was where it stands, and what else was likely there.

    They are the model's own: the natural logarithm of the softmax of its raw logits, in float64, before temperature,
    penalties, biases, masks and truncation, and without the ids that are padding.

    Attributes:
        token_id: the token that stands there.
        logprob: its log probability; -inf for a padding id, which only a prompt can hold.
        top: token id → log probability of as many tokens as were asked for, likeliest first, the lowest id first among
            equals; fewer only if fewer have any probability.
    """

    token_id: int
    logprob: float
    top: dict[int, float] = field(default_factory=dict)


def token_logprobs(rows: Sequence[torch.Tensor], token_ids: Sequence[int], *, top: int, vocab_limit: int) -> list[TokenLogprobs]:
    """The entries of `token_ids`.

    Args:
        rows: for each token the logits after what it follows, [vocab] float32.
        token_ids: the tokens.
        top: how many of the likeliest tokens each entry lists.
        vocab_limit: token ids from here on are padding.

    Raises:
        NonFiniteLogitsError: if a row contains NaN or has no finite maximum.
    """
    return [_entry(row.detach().numpy()[:vocab_limit], token, top) for row, token in zip(rows, token_ids, strict=True)]


def _entry(row: _Float32, token: int, top: int) -> TokenLogprobs:
    peak = float(row.max())
    if not math.isfinite(peak):
        raise NonFiniteLogitsError(f"the largest of {len(row)} logits is {peak}")
    below = row.astype(np.float64)
    below -= peak
    log_total = float(np.log(np.exp(below, out=below).sum()))

    def logprob(token: int) -> float:
        return float(row[token]) - peak - log_total

    return TokenLogprobs(
        token_id=token,
        logprob=logprob(token) if token < len(row) else -math.inf,
        top={token: logprob(token) for token in _likeliest(row, top).tolist()},
    )


def _likeliest(row: _Float32, count: int) -> _Int64:
    """Ids of the `count` largest logits, largest first, the lowest id first among equals; without those that are -inf."""
    count = min(count, len(row))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    # Only the value of the last one is looked for; which ids reach it, and which of its equals are lowest, is then plain.
    least = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > least)
    ids: _Int64 = np.concatenate([above[np.argsort(-row[above], kind="stable")], np.flatnonzero(row == least)[: count - len(above)]])
    return ids[row[ids] > -np.inf]
