"""How long a text may be for a graph to mean what was found out in short ones."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.onnx.mask import MaskError
from flexspec.ir.onnx.node_reader import LengthError

UNLIMITED = 1 << 20
"""Tokens that no text has: a graph that means the same up to here has no limit."""

_OFFSETS = (0, 1, 2)
"""Rows of a table that no position has."""


class ImportedGraph(NamedTuple):
    """A module `forward(input_ids, position_ids) -> logits`, and what it holds for.

    Attributes:
        module: executable. Each attention has its query and KV heads in `meta["heads"]`, the output `meta["vocab_size"]`.
        limit: tokens that a text may have; None for any number.
        changes: whether that is because the graph means something else in longer texts, rather than nothing.
    """

    module: fx.GraphModule
    limit: int | None
    changes: bool


def longest_import(attempt: Callable[[int], fx.GraphModule], numbers: Iterable[int], longest: int, shortest: int) -> ImportedGraph:
    """The import that holds for the longest texts, at most `longest`; it does up to `shortest`.

    Args:
        attempt: imports for texts of up to some length.
        numbers: at which lengths something may well end.
        longest: tokens that no text is to have more of.
        shortest: tokens up to which any import holds.

    Raises:
        UsageError: if at some length a mask means nothing that is known.
    """
    if longest <= shortest:
        return ImportedGraph(attempt(shortest), longest, changes=False)
    try:
        return ImportedGraph(attempt(longest), None if longest == UNLIMITED else longest, changes=False)
    except UsageError as error:
        failure = error
    right, wrong, sizes = shortest, longest, set(numbers)
    best: fx.GraphModule | None = None
    places = sorted({one - less for one in sizes for less in _OFFSETS} | {2**power for power in range(longest.bit_length())})
    while wrong - right > 1:
        inside = [one for one in places if right < one < wrong]
        # A table that ends somewhere does so at its size.
        length = inside[len(inside) // 2] if inside else (right + wrong) // 2
        for tried in (length, length + 1):
            if not right < tried < wrong:
                continue
            try:
                best, right = attempt(tried), tried
            except UsageError as error:
                failure, wrong = error, tried
    # A mask that is made of a table may mean nothing where the table ends; any other means nothing at all.
    if isinstance(failure, MaskError) and right not in {one - less for one in sizes for less in _OFFSETS}:
        raise failure
    return ImportedGraph(best or attempt(right), right, changes=isinstance(failure, LengthError))
