"""What grew on the device, followed on the host: the same trees, and what there is to learn from them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flexspec.codegen.level_growth import GrownLevel, GrowthPlan
from flexspec.runtime.candidates import Candidates, Int64
from flexspec.runtime.drafters.children import Brood, ChildMaker
from flexspec.runtime.drafters.growing_draft import GrowingDraft
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.tempered import tempered


class ReadLevel(NamedTuple):
    """A level as lists, in the order of requests, places in the level and children."""

    level: GrownLevel
    counts: list[int]
    tokens: list[list[int]]
    parents: list[list[int]]
    children: list[list[list[int]]]
    shares: list[list[list[float]]]

    @classmethod
    def of(cls, level: GrownLevel) -> "ReadLevel":
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


def follow(draft: GrowingDraft, levels: Sequence[ReadLevel], row: int, plan: GrowthPlan) -> tuple[list[float], NonFiniteLogitsError | None]:
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


def _nodes(draft: GrowingDraft, level: ReadLevel, row: int, above: Sequence[int | None]) -> list[int | None]:
    """The draft's nodes of a level, given those of the level above."""
    nodes: list[int | None] = []
    for place in range(level.counts[row]):
        parent = above[level.parents[row][place]]
        nodes.append(None if parent is None else draft.growth.builder.child(parent, level.tokens[row][place]))
    return nodes


def _brood(draft: GrowingDraft, level: ReadLevel, row: int, place: int, plan: GrowthPlan) -> Brood:
    maker = draft.maker
    tokens = [token for token in level.children[row][place][: draft.growth.width] if token >= 0]
    if not tokens:
        return Brood(error=NonFiniteLogitsError(f"the largest of {plan.num_columns} logits is not a finite number"))
    source = None
    if maker.is_learning and not maker.sampler.greedy:
        source = _DeviceCandidates(level.level, row, maker, draft.position, plan.token_ids), place
    return Brood(tokens, level.shares[row][place][: len(tokens)], source=source)
