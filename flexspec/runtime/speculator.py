"""Asks the drafters for trees that fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch

from flexspec.acceptance import AcceptanceTable
from flexspec.codegen.batch import Int32
from flexspec.runtime.adaptation.adaptation import Adaptation, record
from flexspec.runtime.device_step import DeviceStep, HostStep
from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.drafters.checked import CheckedDrafter
from flexspec.runtime.drafters.growing_trees import GrowingTrees
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
        self,
        requests: Sequence[Request],
        *,
        tree_tokens: int,
        other_tokens: int = 0,
        rooms: Sequence[int] | None = None,
        device: torch.device | None = None,
    ) -> HostStep | DeviceStep:
        """One tree for each request, in their order; the root alone where there is nothing to propose.

        A tree of depth d emits up to d + 1 tokens, so it is no deeper than what the request may still emit, less one.

        Args:
            requests: decoding requests.
            tree_tokens: most tokens of all trees in this pass, roots included.
            other_tokens: tokens that share the pass.
            rooms: most tokens of each request's tree, its root included; None for no limits but the others.
            device: where trees may be left that grow there, None if the trees are needed now.
        """
        trees = [TokenTree.root(request.tokens[-1]) for request in requests]
        adaptation = self._adaptation
        if adaptation is not None:
            adaptation.begin_step()  # without requests too: what was noted for the step before must not be judged again
        if not self._drafters or not requests:
            return HostStep(trees)
        step = self._step(requests, tree_tokens=tree_tokens, other_tokens=other_tokens, rooms=rooms)
        if not step.wanted:
            return HostStep(trees)
        proposed = self._propose(step.wanted, device)
        if isinstance(proposed, _Growing):
            sizes = self._sizes(proposed.trees.most_nodes, step)
            if any(sizes):
                roots, finish = [request.tokens[-1] for request in requests], partial(self._finish, proposed, sizes, step)
                return DeviceStep(proposed.trees, places=step.places, sizes=sizes, roots=roots, finish=finish)
            # Nothing seems worth verifying: with the trees at hand that can be told better.
            proposed = self._grown(proposed, proposed.trees.packed.cpu().numpy())
        chosen = self._chosen(proposed, step)
        self._note(step.wanted, proposed, chosen)
        for place, tree in zip(step.places, chosen, strict=True):
            trees[place] = in_preorder(tree)
        return HostStep(trees)

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

    def _step(self, requests: Sequence[Request], *, tree_tokens: int, other_tokens: int, rooms: Sequence[int] | None) -> "_Step":
        """What is asked for, and how much of it; arguments as `draft` takes them."""
        each = tree_tokens // len(requests) if self._adaptation is None else tree_tokens - len(requests) + 1
        room = min(each - 1, self._max_nodes)
        most = [room] * len(requests) if rooms is None else [min(room, own - 1) for own in rooms]
        places: list[int] = []
        wanted: list[DraftRequest] = []
        for place, request in enumerate(requests):
            spec = shorten(self._tree, max_depth=request.num_remaining - 1, max_nodes=most[place])
            if spec.depth:
                places.append(place)
                wanted.append(_draft_request(request, spec))
        return _Step(
            wanted=wanted,
            places=places,
            room=room,
            rooms=[most[place] for place in places],
            budget=tree_tokens - len(requests),
            other_tokens=len(requests) + other_tokens,
        )

    def _propose(self, wanted: Sequence[DraftRequest], device: torch.device | None) -> "list[TokenTree] | _Growing":
        """Merged proposals; or the only drafter's, where they grow on `device` and their sizes can be settled before."""
        adaptation = self._adaptation
        if adaptation is not None and not adaptation.can_fix_sizes:
            device = None
        proposals: list[dict[str, TokenTree]] = [{} for _ in wanted]
        merged: list[TokenTree] | None = None  # the proposals, until there are others
        ids = {request.request_id for request in wanted}
        order = self._in_order()
        for drafter in order:
            asked = wanted
            if adaptation is not None:
                promised = 0.0
                if any(proposals):
                    merged = merged or self._merge(wanted, proposals)
                    promised = adaptation.promised(merged, [request.spec.depth for request in wanted])
                if not adaptation.asks(drafter.name, wanted, promised):
                    self._asked_before[drafter.name] = set()
                    continue
                chances, worth = adaptation.chances(drafter.name), adaptation.worth(drafter.name)
                asked = [replace(request, chances=chances, worth=worth) for request in wanted]
            is_steady = ids <= self._asked_before.get(drafter.name, set())
            self._asked_before[drafter.name] = ids
            began = perf_counter()
            is_alone = drafter is order[-1] and not any(proposals)
            trees = drafter.begin_on_device(asked, device) if device is not None and is_alone else drafter.propose(asked)
            if isinstance(trees, GrowingTrees):
                return _Growing(drafter.name, asked, trees, is_steady)
            self._time(drafter.name, asked, trees, perf_counter() - began, is_steady=is_steady)
            for place, tree in enumerate(trees):
                if tree.num_drafted:
                    proposals[place][drafter.name] = tree
                    merged = None
        return merged or self._merge(wanted, proposals)

    def _grown(self, growing: "_Growing", packed: Int32) -> list[TokenTree]:
        """The proposals that grew on a device, as if there had been others too."""
        trees = growing.trees.proposals(packed)
        self._time(growing.drafter, growing.asked, trees, growing.trees.seconds, is_steady=growing.is_steady)
        return self._merge(growing.asked, [{growing.drafter: tree} if tree.num_drafted else {} for tree in trees])

    def _chosen(self, proposed: Sequence[TokenTree], step: "_Step") -> Sequence[TokenTree]:
        """What of the proposals is verified."""
        chosen = proposed
        if self._adaptation is None or any(room < step.room for room in step.rooms):
            chosen = [
                clip(tree, max_depth=asked.spec.depth, max_nodes=own)
                for tree, asked, own in zip(proposed, step.wanted, step.rooms, strict=True)
            ]
        if self._adaptation is not None:
            chosen = self._adaptation.select(
                chosen,
                depths=step.depths,
                room=step.room,
                budget=step.budget,
                other_tokens=step.other_tokens,
                context=step.context,
            )
        return chosen

    def _sizes(self, most_nodes: Sequence[int], step: "_Step") -> list[int]:
        """Drafted nodes that are verified of trees that may have so many."""
        rooms = [min(nodes, room) for nodes, room in zip(most_nodes, step.rooms, strict=True)]
        if self._adaptation is None:
            return rooms
        return self._adaptation.sizes(rooms, budget=step.budget, other_tokens=step.other_tokens, context=step.context)

    def _finish(self, growing: "_Growing", sizes: Sequence[int], step: "_Step", packed: Int32) -> list[TokenTree]:
        """So many nodes of trees that were left on the device, after learning from the proposals."""
        proposed = self._grown(growing, packed)
        verified = growing.trees.best_trees(sizes)
        if self._adaptation is not None:
            self._adaptation.verified(proposed, verified, depths=step.depths, other_tokens=step.other_tokens)
        self._note(growing.asked, proposed, verified)
        return verified

    def _time(self, drafter: str, asked: Sequence[DraftRequest], trees: Sequence[TokenTree], seconds: float, *, is_steady: bool) -> None:
        if self._adaptation is not None:
            self._adaptation.drafted(drafter, asked, seconds, max(max(tree.depths()) for tree in trees), is_steady=is_steady)

    def _note(self, wanted: Sequence[DraftRequest], proposed: Sequence[TokenTree], verified: Sequence[TokenTree]) -> None:
        """Remember trees until it is known what followed their roots."""
        for asked, all_of_it, part in zip(wanted, proposed, verified, strict=True):
            if all_of_it.num_drafted:
                self._proposed[asked.request_id] = all_of_it, part

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


@dataclass(frozen=True, kw_only=True)
class _Step:
    """What drafters are asked for, and what bounds it.

    Attributes:
        wanted: the requests for which anything can be drafted.
        places: theirs among all requests that decode.
        room: most drafted nodes of a tree.
        rooms: likewise, of each of the wanted trees.
        budget: most drafted nodes of all trees.
        other_tokens: tokens of the pass that are not drafted, roots included.
    """

    wanted: Sequence[DraftRequest]
    places: Sequence[int]
    room: int
    rooms: Sequence[int]
    budget: int
    other_tokens: int

    @property
    def depths(self) -> list[int]:
        """Most levels of each tree."""
        return [request.spec.depth for request in self.wanted]

    @property
    def context(self) -> float:
        """Length of the wanted requests' texts, on average."""
        return sum(len(request.tokens) for request in self.wanted) / len(self.wanted)


class _Growing(NamedTuple):
    """The only drafter's proposals, which grow on a device."""

    drafter: str
    asked: Sequence[DraftRequest]
    trees: GrowingTrees
    is_steady: bool


def _draft_request(request: Request, spec: Tree) -> DraftRequest:
    return DraftRequest(
        request_id=request.request_id,
        tokens=tuple(request.tokens),  # a drafter may be anybody's, and must not write into the text
        sampler=request.sampler,
        spec=spec,
        children=request.verifier.children,
        prompt_length=request.prompt_length,
    )
