"""Asks the drafter for trees that fit."""

from collections.abc import Sequence

from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.drafters.checked import CheckedDrafter
from flexspec.runtime.request import Request
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import clip, shorten
from flexspec.tree_shape import TreeSpec


class Speculator:
    """Drafts for a batch of requests.

    Args:
        drafter: proposes trees, or None for plain decoding.
        spec: the widths to fill.
        max_nodes: most drafted nodes of one request's tree, whatever the drafter returns.
    """

    def __init__(self, drafter: Drafter | None, spec: TreeSpec, *, max_nodes: int) -> None:
        self._drafter = CheckedDrafter(drafter) if drafter is not None and spec.depth else None
        self._spec = spec
        self._max_nodes = max_nodes

    def draft(self, requests: Sequence[Request], *, max_nodes: int) -> list[TokenTree]:
        """One tree for each request, in their order; the root alone where there is nothing to propose.

        A tree of depth d emits up to d + 1 tokens, so it is no deeper than what the request may still emit, less one.

        Args:
            requests: decoding requests.
            max_nodes: most nodes of one tree in this pass, root included.
        """
        trees = [TokenTree.root(request.tokens[-1]) for request in requests]
        if self._drafter is None:
            return trees
        room = min(max_nodes - 1, self._max_nodes)
        places: list[int] = []
        wanted: list[DraftRequest] = []
        for place, request in enumerate(requests):
            spec = shorten(self._spec, max_depth=request.num_remaining - 1, max_nodes=room)
            if spec.depth:
                places.append(place)
                wanted.append(_draft_request(request, spec))
        if not wanted:
            return trees
        for place, draft_request, tree in zip(places, wanted, self._drafter.propose(wanted), strict=True):
            trees[place] = clip(tree, max_depth=draft_request.spec.depth, max_nodes=room)
        return trees

    def release(self, request_id: int) -> None:
        """Let the drafter forget a request."""
        if self._drafter is not None:
            self._drafter.release(request_id)


def _draft_request(request: Request, spec: TreeSpec) -> DraftRequest:
    return DraftRequest(
        request_id=request.request_id,
        tokens=request.tokens,
        sampler=request.sampler,
        spec=spec,
        draws=request.verifier.needs_draws and not request.sampler.greedy,
    )
