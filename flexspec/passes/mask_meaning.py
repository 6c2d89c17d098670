"""What an attention mask means, found by evaluation: causal, a sliding window, ALiBi; scale and soft cap come out with it.

Whatever a model computes between the product of queries and keys and the softmax is taken as one function of the products. It is
evaluated at several sizes and compared with what `flexspec::attention` computes; nothing is concluded from how it is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Scores = Callable[[Tensor], Tensor]
"""From products [batch, heads, queries, keys] to what the softmax reads, of the same shape."""

MASKED = -9000.0
"""Scores from here down get a weight of 0 in float32; models mask by minus infinity, the lowest float, -1e9 or -10000."""

_TOLERANCE = 1e-4
_HUGE = 1e6
_TINY = 1e-2
_SHOWN = 6


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Attention's attributes, as those of `flexspec::attention`; slopes of each head."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None


class NotUnderstood(Exception):
    """A mask is none of the known ones; the message shows it."""


def meaning_of(scores: Scores, *, batch: int, heads: int, length: int) -> Meaning:
    """The meaning of `scores` at one size; a window as long as the text is none.

    Raises:
        NotUnderstood: if no attributes of attention give the same scores.
    """
    shape = (batch, heads, length, length)
    base = scores(torch.zeros(shape)).expand(shape).double()
    visible = base > MASKED
    window = _window(visible)
    bias = torch.where(visible, base, 0.0)
    slopes = _slopes(bias, visible)
    scale, softcap = _scale(scores, bias, visible)
    found = Meaning(scale=scale, window=window, softcap=softcap, slopes=slopes)
    products = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    got = scores(products).expand(shape).double()
    expected = products.double() * scale
    expected = bias + (expected if softcap is None else softcap * torch.tanh(expected / softcap))
    wrong = (got - expected).abs() > _TOLERANCE * (1 + expected.abs())
    if bool((wrong & visible).any()) or bool(((got > MASKED) != visible).any()):
        raise NotUnderstood("its scores are not products of queries and keys times a factor, capped or not, plus a mask")
    return found


def combined(first: Meaning, second: Meaning) -> Meaning:
    """One meaning of two sizes, the second one the longer; a window or a slope may show only in a longer text.

    Raises:
        NotUnderstood: if they disagree.
    """
    if first.window is not None and second.window != first.window:
        raise NotUnderstood(f"its window is {first.window} in a short text and {second.window} in a longer one")
    if not _alike(first, second):
        raise NotUnderstood("it is not the same in a short text and in a longer one")
    return replace(first, window=second.window)


def _alike(first: Meaning, second: Meaning) -> bool:
    def close(a: float | None, b: float | None) -> bool:
        return a is b or (a is not None and b is not None and abs(a - b) <= _TOLERANCE * (abs(a) + abs(b)))

    slopes = (first.slopes, second.slopes)
    if (slopes[0] is None) != (slopes[1] is None):
        return False
    pairs = zip(slopes[0] or (), slopes[1] or (), strict=True)
    return close(first.scale, second.scale) and close(first.softcap, second.softcap) and all(close(a, b) for a, b in pairs)


def _window(visible: Tensor) -> int | None:
    """Of a mask [batch, heads, queries, keys] that is the same for all batches and heads."""
    mask = visible[0, 0]
    length = len(mask)
    if not bool((visible == mask).all()):
        raise NotUnderstood("it is not the same for all heads or rows of a batch")
    distance = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    window = int(mask[-1].sum())
    if not torch.equal(mask, (distance >= 0) & (distance < window)):
        raise NotUnderstood(f"it is neither causal nor a sliding window; {_shown(mask)}")
    return None if window == length else window


def _shown(mask: Tensor) -> str:
    count = min(len(mask), _SHOWN)
    rows = ["".join("1" if seen else "0" for seen in row[:count].tolist()) for row in mask[:count]]
    shown = f"of {len(mask)} tokens the first {count} see of these (1): {' '.join(rows)}"
    causal = torch.ones_like(mask).tril()
    if torch.equal(mask[:count, :count], causal[:count, :count]):
        query = int((mask != causal).any(dim=-1).nonzero()[0])
        key = int((mask[query] != causal[query]).nonzero()[0])
        shown += f"; query {query:,} {'sees' if mask[query, key] else 'does not see'} key {key:,}"
    return shown


def _slopes(bias: Tensor, visible: Tensor) -> tuple[float, ...] | None:
    """Each head's slope of a bias that grows with the key's position, up to what all keys of a query share."""
    length = bias.shape[-1]
    own = torch.where(visible, bias - bias.diagonal(dim1=-2, dim2=-1)[..., None], 0.0)
    if length < 2 or not bool(own.any()):
        return None
    distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    # Two keys side by side near the start, or near the end: where a model's own zero lies, their difference is exact.
    for row in (1, length - 1):
        slopes = bias[0, :, row, row] - bias[0, :, row, row - 1]
        expected = torch.where(visible, slopes[None, :, None, None] * distance, 0.0)
        if bool(((own - expected).abs() <= _TOLERANCE * slopes.abs().max()).all()):
            return tuple(slopes.tolist())
    raise NotUnderstood(
        f"it adds to scores what does not grow evenly with the key's position; to the last of {length} tokens, first head: "
        + ", ".join(f"{one:.4g}" for one in bias[0, 0, -1, :_SHOWN].tolist())
    )


def _scale(scores: Scores, bias: Tensor, visible: Tensor) -> tuple[float, float | None]:
    """Factor of the products, and soft cap."""
    place = torch.where(visible, bias.abs(), torch.inf).flatten().argmin()

    def at(product: float) -> float:
        given = torch.full(bias.shape, product)
        return float(scores(given).expand(bias.shape).double().flatten()[place] - bias.flatten()[place])

    one, far = at(1.0), at(_HUGE)
    if abs(far - _HUGE * one) <= _TOLERANCE * abs(far):
        return one, None
    scale = at(_TINY) / _TINY  # tanh is straight there
    softcap = abs(far)
    if scale == 0 or softcap == 0:
        raise NotUnderstood("its scores do not depend on queries and keys")
    # atanh of what the cap left of a middling product is more precise than a slope near 0.
    middle = at(softcap / scale) / softcap
    return (float(torch.atanh(torch.tensor(middle, dtype=torch.float64))) * scale if abs(middle) < 1 else scale), softcap
