"""Trees that grow on the draft model's own device, and are read by the host when they are grown."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from flexspec.codegen.level_growth import GrownLevel, GrowthPlan, LevelGrower
from flexspec.runtime.candidates import Candidates, Int64
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.drafters.children import Brood, ChildMaker
from flexspec.runtime.drafters.depth_forecast import DepthForecast
from flexspec.runtime.drafters.draft_cache import DraftCache, Fed
from flexspec.runtime.drafters.growing_draft import GrowingDraft
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.tempered import tempered

_NUM_CANDIDATES = 32
"""Likeliest tokens of a node by which trust in the noise is learned."""

Limits = Sequence[tuple[int, int]]
"""For each level that is fed: most children of a node that are looked at for it, and most nodes of it."""


class DeviceLevels:
    """Chooses the requests whose trees can grow on the device, and grows them there.

    Trees of requests with rules, and those whose children must be drawn from the model's distribution or chosen by it alone, are
    the host's, and so are trees that no kernel covers.

    Args:
        grower: of the model.
        cache: of the drafter.
        token_ids: as `LevelDrafter` takes them.
        skipped: tokens at the start of a text that the model is not fed.
        has_states: whether the model is fed its own hidden states.
    """

    def __init__(self, grower: LevelGrower, cache: DraftCache, *, token_ids: Int64 | None, skipped: int, has_states: bool) -> None:
        self._grower = grower
        self._cache = cache
        self._token_ids = token_ids
        self._skipped = skipped
        self._has_states = has_states
        self._forecast = DepthForecast()

    def begin(self, drafts: Mapping[int, GrowingDraft], worth: float) -> "DeviceGrowth":
        """What of `drafts` grows on the device.

        Args:
            drafts: of the requests, by their ids; they have nothing but roots.
            worth: tokens that another level of all trees must be expected to add.
        """
        limits: dict[int, Limits] = {}
        columns: int | None = None
        adaptive = sum(math.isfinite(draft.growth.gain) for draft in drafts.values())
        for request_id, draft in drafts.items():
            own, growth = draft.maker.sampler.columns(self._token_ids), draft.growth
            if _is_covered(draft.maker) and columns in (None, own):
                depth = growth.depth
                if math.isfinite(growth.gain):
                    depth = self._forecast.depth(adaptive, worth, depth)
                levels = growth.limits(depth)
                if self._grower.covers([nodes for _, nodes in levels], growth.most_children):
                    limits[request_id], columns = levels, own
        chosen = {request_id: drafts[request_id] for request_id in limits}
        return DeviceGrowth(self, chosen, limits)

    def grow(self, drafts: Mapping[int, GrowingDraft], limits: Mapping[int, Limits], roots: Sequence["_Roots"]) -> Exception | None:
        """Grow the trees of `drafts`; what is wrong with the model, if nodes have no children for that reason."""
        order = [request_id for own in roots for request_id in own.request_ids]
        plan = self._plan([drafts[request_id] for request_id in order], order, limits)
        states = torch.cat([own.states for own in roots if own.states is not None]) if self._has_states else None
        levels = self._grower.grow(self._cache.storage, plan, torch.cat([own.logits for own in roots]), states)
        fault: Exception | None = None
        read = [_ReadLevel.of(level) for level in levels]
        for row, request_id in enumerate(order):
            draft = drafts[request_id]
            gains, own_fault = _follow(draft, read[: len(limits[request_id]) + 1], row, plan)
            fault = fault or own_fault
            if math.isfinite(draft.growth.gain):
                self._forecast.observe(gains)
        return fault

    def roots(self, fed: Fed, chosen: Mapping[int, GrowingDraft]) -> "_Roots":
        """A copy of what a pass over texts says of the roots in `chosen`, left on the device."""
        places = [place for place, request_id in enumerate(fed.places) if request_id in chosen]
        index = torch.tensor(places).to(fed.logits.device, non_blocking=True)
        states = self._grower.states([fed.rows[place] for place in places]) if self._has_states else None
        return _Roots([request_id for request_id in fed.places if request_id in chosen], fed.logits.index_select(0, index), states)

    def _plan(self, drafts: Sequence[GrowingDraft], order: Sequence[int], limits: Mapping[int, Limits]) -> GrowthPlan:
        makers = [draft.maker for draft in drafts]
        samplers = [maker.sampler for maker in makers]
        table = np.zeros((len(order), max(len(limits[request_id]) for request_id in order), 2), dtype=np.int32)
        for row, request_id in enumerate(order):
            if limits[request_id]:
                table[row, : len(limits[request_id])] = limits[request_id]
        lengths, block_tables = self._cache.reserve(order, table[:, :, 1].sum(axis=1).tolist())
        is_learning = any(maker.is_learning and not maker.sampler.greedy for maker in makers)
        return GrowthPlan(
            lengths=lengths,
            skipped=self._skipped,
            block_tables=block_tables,
            limits=table,
            num_children=max(draft.growth.most_children for draft in drafts),
            seeds=np.array([sampler.seed for sampler in samplers], dtype=np.uint64),
            completions=np.array([sampler.completion for sampler in samplers], dtype=np.int32),
            temperatures=np.array([sampler.params.temperature for sampler in samplers], dtype=np.float64),
            alphas=np.array([maker.alpha for maker in makers]),
            num_columns=samplers[0].columns(self._token_ids),
            token_ids=self._token_ids,
            num_candidates=_NUM_CANDIDATES if is_learning else 0,
        )


class _Roots(NamedTuple):
    """What the model says after the roots of some requests."""

    request_ids: Sequence[int]
    logits: torch.Tensor
    states: torch.Tensor | None


class DeviceGrowth:
    """One proposal: it takes the roots of its requests as they are fed, and then grows their trees.

    Args:
        levels: the drafter's.
        drafts: those that grow on the device.
        limits: theirs.
    """

    def __init__(self, levels: DeviceLevels, drafts: Mapping[int, GrowingDraft], limits: Mapping[int, Limits]) -> None:
        self.drafts = drafts
        self._levels = levels
        self._limits = limits
        self._roots: list[_Roots] = []

    def take(self, fed: Fed) -> Fed | None:
        """Keep what a pass says of its requests' roots, and give back what it says of others, if there are any."""
        if any(request_id in self.drafts for request_id in fed.places):
            self._roots.append(self._levels.roots(fed, self.drafts))
        return fed.without(self.drafts)

    def grow(self) -> Exception | None:
        """As `DeviceLevels.grow`."""
        return self._levels.grow(self.drafts, self._limits, self._roots) if self._roots else None


class _ReadLevel(NamedTuple):
    """A level as lists, in the order of requests, places in the level and children."""

    level: GrownLevel
    counts: list[int]
    tokens: list[list[int]]
    parents: list[list[int]]
    children: list[list[list[int]]]
    shares: list[list[list[float]]]

    @classmethod
    def of(cls, level: GrownLevel) -> "_ReadLevel":
        shares = np.exp(level.log_probs.astype(np.float64))
        return cls(level, *(part.tolist() for part in (level.counts, level.tokens, level.parents, level.children, shares)))


class _DeviceCandidates:
    """The likeliest tokens at the nodes of one level of a tree: the noise of those that matter is drawn when it is asked for."""

    def __init__(self, level: GrownLevel, row: int, maker: ChildMaker, position: int, token_ids: Int64 | None) -> None:
        self._level = level
        self._row = row
        self._maker = maker
        self._position = position
        self._token_ids = token_ids

    def at(self, node: int) -> Candidates:
        """Those of the node at this place in its level."""
        sought = self._maker.sampler.sought(1, self._position, 1, self._maker.alpha)
        columns, logits = self._level.candidates[self._row, node], self._level.candidate_logits[self._row, node]
        order = columns.argsort()
        order = order[logits[order] > -np.inf]
        ids = columns[order].astype(np.int64)
        if self._token_ids is not None:
            ids = self._token_ids[ids]
        return Candidates(
            ids=ids,
            scores=tempered(logits[order], logits.max(), sought.temperature),
            noise=None if sought.noise is None else sought.noise.gumbel(ids, index=sought.position),
            nodes=np.zeros(len(ids), dtype=np.int64),
            bounds=(0, len(ids)),
        )


def _is_covered(maker: ChildMaker) -> bool:
    """Whether children are the best by the model's logits and, when sampling, the request's noise: nothing else is on the device."""
    return not maker.sampler.has_rules and (maker.children is Children.ANY or maker.sampler.greedy)


def _follow(
    draft: GrowingDraft, levels: Sequence[_ReadLevel], row: int, plan: GrowthPlan
) -> tuple[list[float], NonFiniteLogitsError | None]:
    """Grow a draft as its tree grew on the device.

    Returns:
        What giving children to each level, from the first below the root on, was expected to add; and what is wrong with the model.
    """
    gains: list[float] = []
    fault: NonFiniteLogitsError | None = None
    growth, place = draft.growth, 0
    nodes: list[int | None] = [0]  # of the level, by their places in it; None for what is not in the draft
    for depth, level in enumerate(levels):
        if depth:
            nodes = _nodes(draft, level, row, nodes)
            draft.follow({node: place + own for own, node in enumerate(nodes) if node is not None})
            place += len(nodes)
            gains.append(growth.gain)
        found = {node: own for own, node in enumerate(nodes) if node is not None}
        broods = [_brood(draft, level, row, found[node], plan) for node in growth.frontier]
        fault = draft.expand(range(len(broods)), broods) or fault
    if len(levels) < growth.depth:
        growth.close_level()
        gains.append(growth.gain)
    return gains, fault


def _nodes(draft: GrowingDraft, level: _ReadLevel, row: int, above: Sequence[int | None]) -> list[int | None]:
    """The draft's nodes of a level, given those of the level above."""
    nodes: list[int | None] = []
    for place in range(level.counts[row]):
        parent = above[level.parents[row][place]]
        nodes.append(None if parent is None else draft.growth.builder.child(parent, level.tokens[row][place]))
    return nodes


def _brood(draft: GrowingDraft, level: _ReadLevel, row: int, place: int, plan: GrowthPlan) -> Brood:
    maker = draft.maker
    tokens = [token for token in level.children[row][place][: draft.growth.width] if token >= 0]
    if not tokens:
        return Brood(error=NonFiniteLogitsError(f"the largest of {plan.num_columns} logits is not a finite number"))
    source = None
    if maker.is_learning and not maker.sampler.greedy:
        source = _DeviceCandidates(level.level, row, maker, draft.position, plan.token_ids), place
    return Brood(tokens, level.shares[row][place][: len(tokens)], source=source)
