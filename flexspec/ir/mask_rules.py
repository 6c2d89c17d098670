"""What a mask rule means, found by evaluation: whether a query sees a key, as a function of their indices."""

from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Transformers' form: (batch, head, query, key) indices that broadcast → bool, true where the query sees the key."""

_SHORT = 70  # all queries of a text this long are looked at, and those around powers of two up to the longest text
_LONGEST = 1 << 20
_QUERIES = 32  # more of any length
_ROWS = 2  # of a batch


class NotUnderstood(Exception):
    """A rule is neither causal nor a sliding window; the message shows it."""


def window_of(rule: Rule, longest: int | None, heads: int = 1) -> int | None:
    """The sliding window of a causal rule; None if every token sees all earlier ones.

    Args:
        rule: of one mask.
        longest: tokens that a text of the model may have, if that is known; a window that no text fills is none.
        heads: that the mask is given to.

    Raises:
        NotUnderstood: if it is another rule, or needs more than indices.
    """
    limit = min(longest or _LONGEST, _LONGEST)
    queries = sorted(set(range(min(_SHORT, limit))) | {one for one in (*_around_powers(limit), *_anywhere(limit)) if one < limit})
    windows: set[int] = set()
    full = 0  # the longest text that a query sees all of
    for query in queries:
        seen = _seen(rule, query, heads)
        if seen == query + 1:
            full = seen
        else:
            windows.add(seen)
        if len(windows) > 1 or (windows and full > min(windows)):
            shown = ", ".join(f"{one:,}" for one in sorted(windows | {full}))
            raise NotUnderstood(f"queries up to index {query:,} see {shown} keys, each up to itself")
    return windows.pop() if windows else None


def _around_powers(limit: int) -> list[int]:
    powers = [1 << bits for bits in range(1, limit.bit_length() + 1)]
    return [limit - 1, *(one + more for power in powers for one in (power, power + power // 2) for more in (-1, 0, 1))]


def _anywhere(limit: int) -> list[int]:
    """Queries of all lengths, the same ones every time."""
    bits = torch.rand(_QUERIES, generator=torch.Generator().manual_seed(0)) * limit.bit_length()
    return [int(one) for one in torch.exp2(bits)]


def _seen(rule: Rule, query: int, heads: int) -> int:
    """How many keys a query sees, itself the last of them, in the first row of a batch by the first head and in another by the last."""
    batch = torch.arange(_ROWS)[:, None]
    head = batch * (heads - 1)
    keys = torch.arange(query + 2)[None, :]
    try:
        visible = rule(batch, head, torch.tensor([[query]]), keys).expand(_ROWS, query + 2)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise NotUnderstood(f"it can't be computed from indices alone ({type(error).__name__} at query {query:,})") from error
    count = int(visible[0].sum())
    if not torch.equal(visible[0], visible[1]):
        raise NotUnderstood(f"query {query:,} does not see the same keys in every row of a batch and with every head")
    if not torch.equal(visible[:1], (keys <= query) & (keys > query - count)):
        first = [index for index, one in enumerate(visible[0].tolist()) if one][:6]
        raise NotUnderstood(f"query {query:,} sees {count:,} keys, of which the first are {first}")
    return count
