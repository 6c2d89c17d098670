"""One request's tree in a draft model's cache."""

from collections.abc import Iterator, Sequence

import torch

from flexspec.errors import UsageError
from flexspec.runtime.candidates import Candidates
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.children import ChildMaker
from flexspec.runtime.drafters.draft_cache import Fed, Level
from flexspec.runtime.drafters.tree_growth import TreeGrowth
from flexspec.runtime.sampling import NonFiniteLogitsError


class GrowingDraft:
    """A tree while it grows: the frontier is fed, each of its nodes gets its children, and so on.

    Fed nodes lie in the request's tail in the order in which they are fed; the root is part of the text. A node of a model
    that takes features is fed with the model's own hidden state at its parent.

    Args:
        request: what is drafted for; its text may grow later.
        growth: the shape.
        children: makes them.
    """

    def __init__(self, request: DraftRequest, growth: TreeGrowth, children: ChildMaker) -> None:
        self.growth = growth
        self._request_id = request.request_id
        self._length = len(request.tokens)
        self._children = children
        self._depth = 0  # of the frontier
        self._paths: dict[int, list[int]] = {0: []}
        self._masks: dict[int, int] = {0: 0}
        self._places: dict[int, int] = {}
        self._candidates: dict[int, Candidates] = {}
        self._rows = {0: 0}  # of the last fed level's nodes in `_states`
        self._states: list[torch.Tensor] = []

    def expand(self, fed: Fed) -> NonFiniteLogitsError | None:
        """Give nodes of the frontier their children; what is wrong with the model, if some get none for that reason."""
        nodes = [self.growth.frontier[place] for place in fed.places]
        if fed.states is not None:
            self._states.append(fed.states)
        broods = self._children.make(
            fed.logits, index=self._length + self._depth, width=self.growth.width, paths=[self._paths[node] for node in nodes]
        )
        fault: NonFiniteLogitsError | None = None
        for node, brood in zip(nodes, broods, strict=True):
            if brood.error is not None:
                # The request's own rules may allow nothing on a drafted path.
                if isinstance(brood.error, NonFiniteLogitsError) and not isinstance(brood.error, UsageError):
                    fault = brood.error
                continue
            if brood.candidates is not None:
                self._candidates[node] = brood.candidates
            self.growth.add(node, brood.children)
        return fault

    def level(self) -> Level:
        """The frontier, to be fed."""
        self._depth += 1
        builder, nodes, first = self.growth.builder, self.growth.frontier, len(self._places)
        parents = [builder.parents[node] for node in nodes]
        features: torch.Tensor | None = None
        if self._states:
            states = self._states[0] if len(self._states) == 1 else torch.cat(self._states)
            features = states[[self._rows[parent] for parent in parents]]
            self._states = []
        self._rows = {node: row for row, node in enumerate(nodes)}
        for place, (node, parent) in enumerate(zip(nodes, parents, strict=True), start=first):
            self._places[node] = place
            self._masks[node] = self._masks[parent] | 1 << place
            self._paths[node] = [*self._paths[parent], builder.tokens[node]]
        tokens, masks = [builder.tokens[node] for node in nodes], [self._masks[node] for node in nodes]
        return Level(request_id=self._request_id, depth=self._depth, first=first, tokens=tokens, masks=masks, features=features)

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
            candidates = self._candidates.get(node) if node is not None else None
            if node is None or candidates is None:
                break
            yield candidates, token, max(self.growth.builder.num_children(node), 1)
            node = self.growth.builder.child(node, token)
