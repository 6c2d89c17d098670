"""Asks the drafter for trees that fit, and never lets its faults reach the text."""

import warnings
from collections.abc import Sequence

from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.request import Request
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import clip, is_well_formed, shorten
from flexspec.tree_shape import TreeSpec


class Speculator:
    """Drafts for a batch of requests.

    Args:
        drafter: proposes trees, or None for plain decoding.
        spec: the widths to fill.
        max_nodes: most drafted nodes of one request's tree, whatever the drafter returns.
        vocab_limit: token ids from here on are never emitted.
    """

    def __init__(self, drafter: Drafter | None, spec: TreeSpec, *, max_nodes: int, vocab_limit: int) -> None:
        self._drafter = drafter if spec.depth else None
        self._spec = spec
        self._max_nodes = max_nodes
        self._vocab_limit = vocab_limit
        self._warned = False

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
        proposed = self._drafter.propose(wanted)
        if not isinstance(proposed, Sequence) or len(proposed) != len(wanted):
            returned = f"{len(proposed)} trees" if isinstance(proposed, Sequence) else repr(proposed)
            self._warn(f"{returned} for {len(wanted)} requests")
            return trees
        for place, draft_request, tree in zip(places, wanted, proposed, strict=True):
            if isinstance(tree, TokenTree) and is_well_formed(tree, root=draft_request.tokens[-1], vocab_limit=self._vocab_limit):
                trees[place] = clip(tree, max_depth=draft_request.spec.depth, max_nodes=room)
            else:
                self._warn("a tree that does not continue its text")
        return trees

    def release(self, request_id: int) -> None:
        """Let the drafter forget a request."""
        if self._drafter is not None:
            self._drafter.release(request_id)

    def _warn(self, fault: str) -> None:
        if not self._warned:
            self._warned = True
            assert self._drafter is not None
            message = f"the drafter {self._drafter.name!r} returned {fault}; such steps decode without drafts (said once)"
            warnings.warn(message, RuntimeWarning, stacklevel=2)


def _draft_request(request: Request, spec: TreeSpec) -> DraftRequest:
    return DraftRequest(
        request_id=request.request_id,
        tokens=request.tokens,
        sampler=request.sampler,
        spec=spec,
        draws=request.verifier.needs_draws and not request.sampler.greedy,
    )
