"""What a mask rule means, found by evaluation: whether a query sees a key, as a function of their indices."""

from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Transformers' form: (batch, head, query, key) indices that broadcast → bool, true where the query sees the key."""

_SHORT = 70  # all queries of a text this long are looked at, and those around powers of two up to the longest text
_LONGEST = 1 << 20
_ROWS = 2  # of a batch


class NotUnderstood(Exception):
    """A rule is neither causal nor a sliding window; the message shows it."""


def window_of(rule: Rule, longest: int | None) -> int | None:
    """The sliding window of a causal rule; None if every token sees all earlier ones.

    Args:
        rule: of one mask.
        longest: tokens that a text of the model may have, if that is known; a window that no text fills is none.

    Raises:
        NotUnderstood: if it is another rule, or needs more than indices.
    """
    limit = min(longest or _LONGEST, _LONGEST)
    queries = sorted(set(range(min(_SHORT, limit))) | {one for one in _around_powers(limit) if one < limit})
    windows: set[int] = set()
    full = 0  # the longest text that a query sees all of
    for query in queries:
        seen = _seen(rule, query)
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


def _seen(rule: Rule, query: int) -> int:
    """How many keys a query sees, itself the last of them."""
    batch = torch.arange(_ROWS)[:, None]
    keys = torch.arange(query + 2)[None, :]
    try:
        visible = rule(batch, torch.zeros((1, 1), dtype=torch.int64), torch.tensor([[query]]), keys).expand(_ROWS, query + 2)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise NotUnderstood(f"it can't be computed from indices alone ({type(error).__name__} at query {query:,})") from error
    count = int(visible[0].sum())
    expected = (keys <= query) & (keys > query - count)
    if not torch.equal(visible, expected.expand_as(visible)):
        first = [index for index, one in enumerate(visible[0].tolist()) if one][:6]
        raise NotUnderstood(f"query {query:,} sees {count:,} keys, of which the first are {first}")
    return count
