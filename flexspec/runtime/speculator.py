"""Asks the drafters for trees that fit."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

from flexspec.acceptance import AcceptanceTable
from flexspec.runtime.adaptation.adaptation import Adaptation, record
from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.drafters.checked import CheckedDrafter
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.request import Request
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import clip, in_preorder
from flexspec.tree_shape import Tree, shorten


class Speculator:
    """Drafts for a batch of requests.

    Args:
        drafters: propose trees, which are merged; none for plain decoding. Their names differ.
        tree: the widths to fill, or the limits of an adaptive tree.
        max_nodes: most drafted nodes of one request's tree, whatever the drafters return.
        acceptance: of the drafters; it learns from static trees as well. None for nothing known.
        adaptation: chooses what is verified of the proposals, by the same statistics; None for static trees.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter],
        tree: Tree,
        *,
        max_nodes: int,
        acceptance: AcceptanceTable | None = None,
        adaptation: Adaptation | None = None,
    ) -> None:
        names = [drafter.name for drafter in drafters]
        assert len(set(names)) == len(names), f"drafters share a name: {names}"
        self._drafters = [CheckedDrafter(drafter) for drafter in drafters] if tree.depth else []
        self._tree = tree
        self._max_nodes = max_nodes
        self._acceptance = AcceptanceTable() if acceptance is None else acceptance
        self._adaptation = adaptation
        self._proposed: dict[int, tuple[TokenTree, TokenTree]] = {}
        self._asked_before: dict[str, set[int]] = {}  # the requests that a drafter was asked for in the step before

    @property
    def state_readers(self) -> list[CheckedDrafter]:
        """The drafters that want the LLM's hidden states."""
        return [drafter for drafter in self._drafters if drafter.reads_states]

    def draft(
        self, requests: Sequence[Request], *, tree_tokens: int, other_tokens: int = 0, rooms: Sequence[int] | None = None
    ) -> list[TokenTree]:
        """One tree for each request, in their order; the root alone where there is nothing to propose.

        A tree of depth d emits up to d + 1 tokens, so it is no deeper than what the request may still emit, less one.

        Args:
            requests: decoding requests.
            tree_tokens: most tokens of all trees in this pass, roots included.
            other_tokens: tokens that share the pass.
            rooms: most tokens of each request's tree, its root included; None for no limits but the others.
        """
        trees = [TokenTree.root(request.tokens[-1]) for request in requests]
        adaptation = self._adaptation
        if adaptation is not None:
            adaptation.begin_step()  # without requests too: what was noted for the step before must not be judged again
        if not self._drafters or not requests:
            return trees
        each = tree_tokens // len(requests) if adaptation is None else tree_tokens - len(requests) + 1
        room = min(each - 1, self._max_nodes)
        most = [room] * len(requests) if rooms is None else [min(room, own - 1) for own in rooms]
        places: list[int] = []
        wanted: list[DraftRequest] = []
        for place, request in enumerate(requests):
            spec = shorten(self._tree, max_depth=request.num_remaining - 1, max_nodes=most[place])
            if spec.depth:
                places.append(place)
                wanted.append(_draft_request(request, spec))
        if not wanted:
            return trees
        chosen = merged = self._propose(wanted)
        if adaptation is None or rooms is not None:
            chosen = [
                clip(tree, max_depth=asked.spec.depth, max_nodes=most[place])
                for tree, asked, place in zip(merged, wanted, places, strict=True)
            ]
        if adaptation is not None:
            chosen = adaptation.select(
                chosen,
                depths=[asked.spec.depth for asked in wanted],
                room=room,
                budget=tree_tokens - len(requests),
                other_tokens=len(requests) + other_tokens,
                context=sum(len(request.tokens) for request in wanted) / len(wanted),
            )
        for asked, proposed, verified in zip(wanted, merged, chosen, strict=True):
            if proposed.num_drafted:
                self._proposed[asked.request_id] = proposed, verified
        for place, tree in zip(places, chosen, strict=True):
            trees[place] = in_preorder(tree)
        return trees

    def observe(self, request_id: int, emitted: Sequence[int]) -> None:
        """Learn from what followed the root of a request's last tree: the accepted tokens and the bonus token."""
        trees = self._proposed.pop(request_id, None)
        if trees is None:
            return
        if self._adaptation is not None:
            self._adaptation.observe(*trees, emitted)
        else:
            record(self._acceptance, trees[0], emitted)

    def release(self, request_id: int) -> None:
        """Let the drafters forget a request that ended, or was preempted: should it come again, it is new to them."""
        self._proposed.pop(request_id, None)
        for asked in self._asked_before.values():
            asked.discard(request_id)
        for drafter in self._drafters:
            drafter.release(request_id)

    def _propose(self, wanted: Sequence[DraftRequest]) -> list[TokenTree]:
        proposals: list[dict[str, TokenTree]] = [{} for _ in wanted]
        merged: list[TokenTree] | None = None  # the proposals, until there are others
        ids = {request.request_id for request in wanted}
        for drafter in self._in_order():
            asked = wanted
            if self._adaptation is not None:
                promised = 0.0
                if any(proposals):
                    merged = merged or self._merge(wanted, proposals)
                    promised = self._adaptation.promised(merged, [request.spec.depth for request in wanted])
                if not self._adaptation.asks(drafter.name, wanted, promised):
                    self._asked_before[drafter.name] = set()
                    continue
                chances, worth = self._adaptation.chances(drafter.name), self._adaptation.worth(drafter.name)
                asked = [replace(request, chances=chances, worth=worth) for request in wanted]
            began = perf_counter()
            trees = drafter.propose(asked)
            if self._adaptation is not None:
                seconds, levels = perf_counter() - began, max(max(tree.depths()) for tree in trees)
                is_steady = ids <= self._asked_before.get(drafter.name, set())
                self._adaptation.drafted(drafter.name, asked, seconds, levels, is_steady=is_steady)
                self._asked_before[drafter.name] = ids
            for place, tree in enumerate(trees):
                if tree.num_drafted:
                    proposals[place][drafter.name] = tree
                    merged = None
        return merged or self._merge(wanted, proposals)

    def _in_order(self) -> list[CheckedDrafter]:
        """The drafters as they are asked."""
        if self._adaptation is None:
            return self._drafters
        names = {drafter.name: drafter for drafter in self._drafters}
        return [names[name] for name in self._adaptation.by_cost(list(names))]

    def _merge(self, wanted: Sequence[DraftRequest], proposals: Sequence[dict[str, TokenTree]]) -> list[TokenTree]:
        """One tree a request; whatever the order in which drafters were asked, trials are in the order of the drafters."""
        return [
            merge_trees(request.tokens[-1], [(drafter.name, own[drafter.name]) for drafter in self._drafters if drafter.name in own])
            for request, own in zip(wanted, proposals, strict=True)
        ]


def _draft_request(request: Request, spec: Tree) -> DraftRequest:
    return DraftRequest(
        request_id=request.request_id,
        tokens=tuple(request.tokens),  # a drafter may be anybody's, and must not write into the text
        sampler=request.sampler,
        spec=spec,
        children=request.verifier.children,
        prompt_length=request.prompt_length,
    )
