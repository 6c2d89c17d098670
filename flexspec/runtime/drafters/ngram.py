"""Prompt lookup: drafts what followed the last time the text went like this."""

from collections.abc import Iterator, Sequence
from itertools import islice

from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.tree_shape import TreeLimits

_MAX_MATCHES = 16
"""Earlier occurrences that are looked at; the width fills long before."""
_UNGRADED = 0
"""The grade of nodes of static trees, for which too few matches are looked at to tell how far they agree."""
_WEAK_DEPTH = 4
"""Levels drafted from a match of a single token, which seldom holds longer, and in adaptive trees from all but the best."""
_TOKEN_BITS = 32
"""Bits of a token in the number that stands for an n-gram."""
_AMONG_OTHERS, _ONCE, _ALWAYS = range(3)
_CERTAIN_SHARE = 0.8
"""Share of the matches from which on a continuation they agree on passes for the only one."""


class NgramDrafter:
    """Proposes continuations of earlier occurrences of the text's last tokens, the longest match first, then the latest.

    An index of the request's n-grams grows with its text, so that a step costs the same at any length. A continuation
    that reaches the end of the text goes on in its own copy, which unrolls loops.

    The defaults are the best of those simulated on SmolLM2's greedy answers with chains of 8: 1.70 tokens a step, with
    `min_n` 2 it was 1.57; without the limit on single tokens 1.74, but with more nodes to verify than that is worth.

    Args:
        min_n: fewest tokens that must match.
        max_n: most tokens that are compared.
    """

    def __init__(self, *, min_n: int = 1, max_n: int = 4) -> None:
        assert 1 <= min_n <= max_n, f"n from {min_n} to {max_n}"
        self.name = "ngram"
        self._sizes = range(max_n, min_n - 1, -1)
        self._indices: dict[int, _NgramIndex] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`; children are chosen, not drawn."""
        return [self._propose(request) for request in requests]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        self._indices.pop(request_id, None)

    def _propose(self, request: DraftRequest) -> TokenTree:
        index = self._indices.get(request.request_id)
        if index is None:
            index = self._indices[request.request_id] = _NgramIndex(self._sizes)
        index.extend(request.tokens)
        spec, limit = request.spec, request.sampler.vocab_limit
        builder = TreeBuilder(request.tokens[-1])
        if isinstance(spec, TreeLimits):
            _add_graded(builder, index, spec, limit)
            return builder.build()
        full = 1 if spec.num_nodes == spec.depth else _MAX_MATCHES
        for place, size in islice(index.matches(), full):
            widths = spec.widths if size > 1 else spec.widths[:_WEAK_DEPTH]
            _add_continuation(builder, index.tokens, place, widths, limit, grade=_UNGRADED)
            if len(builder) > spec.num_nodes:
                break
        return builder.build()


class _NgramIndex:
    """Where each n-gram of a growing text is followed by something.

    For each n there is a map from an n-gram, as one number, to the latest place after it, and a list that leads from
    each place to the one before it with the same n-gram (0: none). Unlike lists in a map, that leaves nothing for the
    garbage collector to walk, whose pauses would exceed the work.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.tokens: list[int] = []
        self._sizes = sizes
        self._latest: dict[int, dict[int, int]] = {size: {} for size in sizes}
        self._earlier: dict[int, list[int]] = {size: [] for size in sizes}
        self._keys = {size: _mask(size) for size in sizes}  # of the last n tokens; before the text stands what is no token

    def extend(self, text: Sequence[int]) -> None:
        """Take in what is new in `text`, which continues what was given before."""
        old = len(self.tokens)
        self.tokens += text[old:]
        for size in self._sizes:
            latest, earlier = self._latest[size], self._earlier[size]
            key, mask = self._keys[size], _mask(size)
            for place in range(old, len(self.tokens)):
                earlier.append(latest.get(key, 0))
                if place >= size:
                    latest[key] = place
                key = (key << _TOKEN_BITS | self.tokens[place]) & mask
            self._keys[size] = key

    def matches(self) -> Iterator[tuple[int, int]]:
        """Places after earlier occurrences of the text's end, and tokens compared: the longest first, then the latest."""
        seen: set[int] = set()
        for size in self._sizes:
            place = self._latest[size].get(self._keys[size], 0)
            for _ in range(_MAX_MATCHES):
                if not place:
                    break
                if place not in seen:
                    seen.add(place)
                    yield place, size
                place = self._earlier[size][place]


def _mask(size: int) -> int:
    return (1 << _TOKEN_BITS * size) - 1


def _add_graded(builder: TreeBuilder, index: _NgramIndex, limits: TreeLimits, limit: int) -> None:
    """Add the continuations of several matches within the limits, each with a grade of its length and of how far matches agree."""
    matches = list(islice(index.matches(), _MAX_MATCHES))
    text = index.tokens
    first_tokens = [text[place] for place, _ in matches]
    for rank, (place, size) in enumerate(matches):
        rivals = sum(other >= size for _, other in matches)
        votes = first_tokens[:rivals].count(text[place])
        certainty = _ONCE if rivals == 1 else _ALWAYS if votes >= _CERTAIN_SHARE * rivals else _AMONG_OTHERS
        depth = limits.depth if size > 1 and not rank else min(limits.depth, _WEAK_DEPTH)
        widths = (limits.branch,) * min(depth, limits.budget + 1 - len(builder))
        _add_continuation(builder, text, place, widths, limit, grade=1 + 3 * (size - 1) + certainty)


def _add_continuation(builder: TreeBuilder, text: Sequence[int], place: int, widths: Sequence[int], limit: int, grade: int) -> None:
    """Add what follows `place` as far as the widths allow."""
    period = len(text) - place
    node = 0
    for depth, width in enumerate(widths):
        token = text[place + depth % period]
        child = builder.child(node, token)
        if child is None:
            if builder.num_children(node) == width or token >= limit:
                return
            child = builder.add(node, token, grade=grade)
        node = child
