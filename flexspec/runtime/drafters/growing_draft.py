"""One request's tree in a draft model's cache."""

from collections.abc import Iterator, Mapping, Sequence

from flexspec.errors import UsageError
from flexspec.runtime.candidates import Candidates, CandidateSource
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.children import Brood, ChildMaker, Parents
from flexspec.runtime.drafters.draft_cache import Level
from flexspec.runtime.drafters.tree_growth import TreeGrowth
from flexspec.runtime.sampling import NonFiniteLogitsError


class GrowingDraft:
    """A tree while it grows: the frontier is fed, each of its nodes gets its children, and so on.

    Fed nodes lie in the request's tail in the order in which they are fed; the root is part of the text.

    Args:
        request: what is drafted for; its text may grow later.
        growth: the shape.
        maker: makes children.
    """

    def __init__(self, request: DraftRequest, growth: TreeGrowth, maker: ChildMaker) -> None:
        self.growth = growth
        self.maker = maker
        self._request_id = request.request_id
        self._length = len(request.tokens)
        self._depth = 0  # of the frontier
        self._masks: dict[int, int] = {0: 0}
        self._places: dict[int, int] = {}
        self._level: Sequence[int] = (0,)  # the last that was fed
        self._sources: dict[int, tuple[CandidateSource, int]] = {}

    @property
    def position(self) -> int:
        """In the whole text, of the frontier's children."""
        return self._length + self._depth

    def parents(self, places: range) -> Parents:
        """Those of the frontier at `places`, which want children."""
        paths: Sequence[Sequence[int]] = [()] * len(places)
        if self.maker.sampler.has_rules:
            paths = [self._path(self.growth.frontier[place]) for place in places]
        return Parents(self.maker, self.position, self.growth.width, paths)

    def expand(self, places: range, broods: Sequence[Brood]) -> NonFiniteLogitsError | None:
        """Give nodes of the frontier their children; what is wrong with the model, if some get none for that reason."""
        fault: NonFiniteLogitsError | None = None
        for place, brood in zip(places, broods, strict=True):
            node = self.growth.frontier[place]
            if brood.error is not None:
                # The request's own rules may allow nothing on a drafted path.
                if isinstance(brood.error, NonFiniteLogitsError) and not isinstance(brood.error, UsageError):
                    fault = brood.error
                continue
            if brood.source is not None:
                self._sources[node] = brood.source
            self.growth.add(node, brood)
        return fault

    def level(self) -> Level:
        """The frontier, to be fed."""
        self._depth += 1
        builder, nodes, first = self.growth.builder, self.growth.frontier, len(self._places)
        rows = {node: row for row, node in enumerate(self._level)}
        tokens, masks, parents = [], [], []
        for place, node in enumerate(nodes, start=first):
            parent = builder.parents[node]
            mask = self._masks[node] = self._masks[parent] | 1 << place
            self._places[node] = place
            tokens.append(builder.tokens[node])
            masks.append(mask)
            parents.append(rows[parent])
        self._level = nodes
        return Level(self._request_id, self._depth, first, tokens, masks, parents)

    def follow(self, places: Mapping[int, int]) -> None:
        """Go on to the next level, of which these nodes have been fed already: node → place in the tail."""
        self._depth += 1
        self._places.update(places)
        self.growth.close_level([*places])

    def accepted(self, tokens: Sequence[int]) -> list[int]:
        """Places in the tail of the fed nodes that follow the root along `tokens`."""
        node, path = 0, []
        for token in tokens:
            child = self.growth.builder.child(node, token)
            if child is None or child not in self._places:
                break
            path.append(self._places[child])
            node = child
        return path

    def choices(self, text: Sequence[int]) -> Iterator[tuple[Candidates, int, int]]:
        """What is known now that the text has grown to `text`.

        Yields:
            At each node along it, what the children were chosen from, what followed, and how many children there were.
        """
        node: int | None = 0
        for token in text[self._length :]:
            source = self._sources.get(node) if node is not None else None
            if node is None or source is None:
                break
            candidates, place = source
            yield candidates.at(place), token, max(self.growth.builder.num_children(node), 1)
            node = self.growth.builder.child(node, token)

    def _path(self, node: int) -> list[int]:
        """The drafted tokens from the root to a node, its own included."""
        builder, path = self.growth.builder, []
        while node:
            path.append(builder.tokens[node])
            node = builder.parents[node]
        return path[::-1]
