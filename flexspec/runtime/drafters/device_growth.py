"""One proposal whose trees grow on the draft model's own device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from flexspec.codegen.batch import Int32
from flexspec.codegen.level_growth import Growth, GrowthPlan, LevelGrower
from flexspec.runtime.candidates import Int64
from flexspec.runtime.drafters.depth_forecast import DepthForecast
from flexspec.runtime.drafters.draft_cache import DraftCache, Fed
from flexspec.runtime.drafters.growing_draft import GrowingDraft
from flexspec.runtime.drafters.grown_levels import ReadLevel, follow

_NUM_CANDIDATES = 32
"""Likeliest tokens of a node by which trust in the noise is learned."""

Limits = Sequence[tuple[int, int]]
"""For each level that is fed: most children of a node that are looked at for it, and most nodes of it."""


@dataclass(frozen=True, kw_only=True)
class GrowingModel:
    """A draft model that grows trees on its device.

    Attributes:
        grower: of the model.
        cache: of the drafter.
        token_ids: as `LevelDrafter` takes them.
        skipped: tokens at the start of a text that the model is not fed.
        has_states: whether the model is fed its own hidden states.
        forecast: learns from every tree.
    """

    grower: LevelGrower
    cache: DraftCache
    token_ids: Int64 | None
    skipped: int
    has_states: bool
    forecast: DepthForecast


class GrownNode(NamedTuple):
    """A node that was chosen on the device.

    Attributes:
        token: its token.
        parent: its parent's number in its tree.
        rank: its place among its parent's children.
        share: the draft model's own estimate of the chance that it is what follows.
    """

    token: int
    parent: int
    rank: int
    share: float


class DeviceGrowth:
    """Takes the roots of its requests as they are fed, lets their trees grow, and follows them on the host when they are grown.

    Args:
        model: grows them.
        drafts: those that grow on the device, by request.
        limits: theirs.
    """

    def __init__(self, model: GrowingModel, drafts: Mapping[int, GrowingDraft], limits: Mapping[int, Limits]) -> None:
        self.drafts = drafts
        self._model = model
        self._limits = limits
        self._most_nodes = {request_id: draft.growth.most_nodes(len(limits[request_id]) + 1) for request_id, draft in drafts.items()}
        self._roots: list[_Roots] = []
        self._rows: dict[int, int] = {}  # of the requests' trees
        self._plan: GrowthPlan | None = None
        self._grown: Growth | None = None
        self._levels: Sequence[ReadLevel] = ()
        self._nodes: Int32 | None = None

    @property
    def packed(self) -> torch.Tensor:
        """[n] int32, on the device, what `follow` takes."""
        assert self._grown is not None, "nothing grows yet"
        return self._grown.packed

    @property
    def depth(self) -> int:
        """Most levels below the roots."""
        return max((len(limits) + 1 for limits in self._limits.values()), default=0)

    def most_nodes(self, request_id: int) -> int:
        """Drafted nodes that a request's tree may have; 0 of a request whose tree does not grow."""
        return self._most_nodes.get(request_id, 0)

    def take(self, fed: Fed) -> Fed | None:
        """Keep what a pass says of its requests' roots, and give back what it says of others, if there are any."""
        places = [place for place, request_id in enumerate(fed.places) if request_id in self.drafts]
        if places:
            index = torch.tensor(places).to(fed.logits.device, non_blocking=True)
            states = self._model.grower.states([fed.rows[place] for place in places]) if self._model.has_states else None
            request_ids = [request_id for request_id in fed.places if request_id in self.drafts]
            self._roots.append(_Roots(request_ids, fed.logits.index_select(0, index), states))
        return fed.without(self.drafts)

    def start(self, *, keeps_nodes: bool) -> None:
        """Begin to grow the trees, without waiting for them.

        Args:
            keeps_nodes: whether `best_nodes` will be asked for.
        """
        if not self._roots:
            return
        order = [request_id for own in self._roots for request_id in own.request_ids]
        self._rows = {request_id: row for row, request_id in enumerate(order)}
        self._plan = self._planned(order, keeps_nodes=keeps_nodes)
        states = torch.cat([own.states for own in self._roots if own.states is not None]) if self._model.has_states else None
        logits = torch.cat([own.logits for own in self._roots])
        self._grown = self._model.grower.grow(self._model.cache.storage, self._plan, logits, states)

    def follow(self, packed: Int32 | None = None) -> Exception | None:
        """Grow the drafts as their trees grew.

        Args:
            packed: fetched to the host; None to wait for it here.

        Returns:
            What is wrong with the model, if nodes have no children for that reason.
        """
        if self._grown is None or self._plan is None:
            return None
        grown = self._grown.read(self.packed.cpu().numpy() if packed is None else packed)
        self._levels, self._nodes = [ReadLevel.of(level) for level in grown.levels], grown.nodes
        fault: Exception | None = None
        for request_id, row in self._rows.items():
            draft = self.drafts[request_id]
            gains, own_fault = follow(draft, self._levels[: len(self._limits[request_id]) + 1], row, self._plan)
            fault = fault or own_fault
            if math.isfinite(draft.growth.gain):
                self._model.forecast.observe(gains)
        return fault

    def best_nodes(self, sizes: Mapping[int, int]) -> torch.Tensor:
        """[n, columns] on the device, as `flexspec.codegen.device_trees` has them: the best nodes of each request's tree, in order.

        Args:
            sizes: how many of them, at most `most_nodes`.
        """
        assert self._grown is not None, "nothing grows yet"
        nodes = self._grown.nodes
        index = np.concatenate([np.arange(size) + self._rows[request_id] * nodes.shape[1] for request_id, size in sizes.items() if size])
        return nodes.flatten(0, 1).index_select(0, torch.from_numpy(index).to(nodes.device, non_blocking=True))

    def read_nodes(self, request_id: int, size: int) -> list[GrownNode]:
        """Those of them that are there, after `follow`."""
        assert self._nodes is not None and self._plan is not None, "not followed yet"
        row, found = self._rows[request_id], []
        shares = [own for level in self._levels for own in level.shares[row]]  # of the children of all that was fed
        for token, parent, depth, child in self._nodes[row, :size].tolist():
            if not depth:
                break
            fed, rank = divmod(child, self._plan.num_children)
            found.append(GrownNode(token, parent, rank, shares[fed][rank]))
        return found

    def _planned(self, order: Sequence[int], *, keeps_nodes: bool) -> GrowthPlan:
        model, limits = self._model, self._limits
        makers = [self.drafts[request_id].maker for request_id in order]
        samplers = [maker.sampler for maker in makers]
        num_levels = max(len(limits[request_id]) for request_id in order)
        table = np.zeros((len(order), num_levels, 2), dtype=np.int32)
        branches = np.zeros((len(order), num_levels + 1), dtype=np.int32)
        for row, request_id in enumerate(order):
            own = limits[request_id]
            if own:
                table[row, : len(own)] = own
            branches[row, : len(own) + 1] = self.drafts[request_id].growth.branches(len(own) + 1)
        lengths, block_tables = model.cache.reserve(order, table[:, :, 1].sum(axis=1).tolist())
        is_learning = any(maker.is_learning and not maker.sampler.greedy for maker in makers)
        return GrowthPlan(
            lengths=lengths,
            skipped=model.skipped,
            block_tables=block_tables,
            limits=table,
            num_children=max(self.drafts[request_id].growth.most_children for request_id in order),
            seeds=np.array([sampler.seed for sampler in samplers], dtype=np.uint64),
            completions=np.array([sampler.completion for sampler in samplers], dtype=np.int32),
            temperatures=np.array([sampler.params.temperature for sampler in samplers], dtype=np.float64),
            alphas=np.array([maker.alpha for maker in makers]),
            num_columns=samplers[0].columns(model.token_ids),
            token_ids=model.token_ids,
            num_candidates=_NUM_CANDIDATES if is_learning else 0,
            num_nodes=max(self._most_nodes.values()) if keeps_nodes else 0,
            branches=branches if keeps_nodes else None,
        )


class _Roots(NamedTuple):
    """What the model says after the roots of some requests."""

    request_ids: Sequence[int]
    logits: torch.Tensor
    states: torch.Tensor | None
