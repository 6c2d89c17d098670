"""Trees of which the device says with which chance their tokens are accepted, from which the host decides as its verifiers do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flexspec.codegen.tree_trials import Int64, TrialResults, TriedTrees
from flexspec.runtime.device_walk import is_decidable, truncation
from flexspec.runtime.distribution import Distribution, Float64
from flexspec.runtime.randomness import VERIFIER_STREAM
from flexspec.runtime.request import Request
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.point_mass import PointMassVerifier
from flexspec.runtime.verifiers.traversal import TraversalVerifier, visit_numbers
from flexspec.runtime.verifiers.trials import trials_at
from flexspec.runtime.verifiers.without_replacement import WithoutReplacementVerifier

_ONE_BY_ONE = (MssVerifier, WithoutReplacementVerifier, PointMassVerifier)
"""Verifiers that decide on a node before they go on to its children; exactly these, since others may have rules of their own."""


def can_try(request: Request) -> bool:
    """Whether a request's trees are verified by trials, and the device can make them."""
    return type(request.verifier) in (*_ONE_BY_ONE, TraversalVerifier) and is_decidable(request)


class _Visit(NamedTuple):
    """A visit of a node as the device is told of it.

    Attributes:
        number: the visit's own, in its tree.
        node: the node.
        trials: those made there.
        level: visits on which this one depends, one after the other.
        debt: the visit, and the trial there, whose acceptance this one owes; None owes 1.
        uniforms: the numbers of its decisions.
    """

    number: int
    node: int
    trials: Sequence[Draw]
    level: int
    debt: tuple[int, int] | None
    uniforms: Float64


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is asked of the device about a tree.

    Attributes:
        request: whose it is.
        trials: at each node.
        numbers: of the visits that these make; () for verifiers that go on only when a trial is accepted.
        visits: all there may be.
    """

    request: Request
    trials: Sequence[Sequence[Draw]]
    numbers: Sequence[Sequence[int]]
    visits: Sequence[_Visit]


class TrialPlans:
    """What is asked about some trees, and what its answer means for each.

    Args:
        trees: whose rows of logits follow each other.

    Attributes:
        tried: what is asked.
    """

    def __init__(self, trees: Sequence[tuple[Request, TokenTree]]) -> None:
        self._plans = [_traversal_plan(*one) if isinstance(one[0].verifier, TraversalVerifier) else _descent_plan(*one) for one in trees]
        starts = np.cumsum([0, *(len(tree.tokens) for _, tree in trees)], dtype=np.int32)
        visits = [(place, visit) for place, plan in enumerate(self._plans) for visit in plan.visits]
        visits.sort(key=lambda one: one[1].level)
        self._rows = {(place, visit.number): row for row, (place, visit) in enumerate(visits)}
        levels = [visit.level for _, visit in visits]
        width = max(len(visit.trials) for _, visit in visits)
        tokens, q_rows = np.full((2, len(visits), width), -1, dtype=np.int32)
        uniforms = np.zeros((len(visits), width + 1))
        debts = np.full(len(visits), -1, dtype=np.int32)
        qs = _Distributions()
        for row, (place, visit) in enumerate(visits):
            for trial, draw in enumerate(visit.trials):
                tokens[row, trial] = trees[place][1].tokens[draw.node]
                q_rows[row, trial] = qs.row(draw.q)
            uniforms[row, : len(visit.uniforms)] = visit.uniforms
            if visit.debt is not None:
                debts[row] = self._rows[place, visit.debt[0]] * width + visit.debt[1]
        q_starts, q_ids, q_probs = qs.sparse()
        samplers = [request.sampler for request, _ in trees]
        self.tried = TriedTrees(
            node_starts=starts,
            temperatures=np.array([sampler.params.temperature for sampler in samplers]),
            vocab_limits=np.array([sampler.vocab_limit for sampler in samplers], dtype=np.int32),
            truncation=truncation([sampler.params for sampler in samplers]),
            rows=np.array([starts[place] + visit.node for place, visit in visits], dtype=np.int32),
            level_starts=[*(levels.index(level) for level in range(levels[-1] + 1)), len(visits)],
            debts=debts,
            is_decided=np.array([not self._plans[place].numbers for place, _ in visits], dtype=np.int32),
            tokens=tokens,
            q_rows=q_rows,
            uniforms=uniforms,
            q_starts=q_starts,
            q_ids=q_ids,
            q_probs=q_probs,
        )

    def verdict(self, place: int, results: TrialResults) -> Verdict | None:
        """What the results say of a tree; None if the logits that a verifier would have met are not finite."""
        plan = self._plans[place]
        rows = {visit.number: self._rows[place, visit.number] for visit in plan.visits}
        return _climb(plan, rows, results) if plan.numbers else _descend(plan, rows, results)


class _Distributions:
    """What children were drawn from, every distribution once."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._all: list[Distribution] = []

    def row(self, q: Distribution | None) -> int:
        """The number of a distribution; -1 for None."""
        if q is None:
            return -1
        row = self._rows.setdefault(id(q), len(self._all))
        if row == len(self._all):
            self._all.append(q)
        return row

    def sparse(self) -> tuple[Int64, Int64, Float64]:
        """Where each begins, and the token ids and probabilities of all."""
        starts = np.cumsum([0, *(len(q.ids) for q in self._all)], dtype=np.int64)
        ids = np.concatenate([np.empty(0, dtype=np.int64), *(q.ids for q in self._all)])
        return starts, ids, np.concatenate([np.empty(0), *(q.probs for q in self._all)])


def _trials(tree: TokenTree) -> list[Sequence[Draw]]:
    children = tree.children()
    return [trials_at(tree, node, children) for node in range(len(tree.tokens))]


def _descent_plan(request: Request, tree: TokenTree) -> _Plan:
    """As `MssVerifier.verify` goes: every node by itself, with the numbers of its text position."""
    trials = _trials(tree)
    visits = []
    for node, depth in enumerate(tree.depths()):
        uniforms = request.sampler.uniforms(len(trials[node]) + 1, len(request.tokens) + depth, VERIFIER_STREAM)
        visits.append(_Visit(number=node, node=node, trials=trials[node], level=0, debt=None, uniforms=uniforms))
    return _Plan(request=request, trials=trials, numbers=(), visits=visits)


def _descend(plan: _Plan, rows: dict[int, int], results: TrialResults) -> Verdict | None:
    path = [0]
    while (trial := int(results.accepted[rows[path[-1]]])) >= 0:
        path.append(plan.trials[path[-1]][trial].node)
    bonus = int(results.bonus[rows[path[-1]]])
    return None if bonus < 0 else Verdict(path=path, bonus=bonus)


def _traversal_plan(request: Request, tree: TokenTree) -> _Plan:
    """As `TraversalVerifier.verify` may go: each visit after that of its parent, whatever comes of it having to fail."""
    trials = _trials(tree)
    numbers = visit_numbers(trials)

    def visit(number: int, node: int, level: int, debt: tuple[int, int] | None) -> _Visit:
        own = trials[node] if number == node else ()
        # The first number decides whether it ends here, the second which token follows.
        uniforms = np.full(len(own) + 1, request.sampler.uniforms(2, len(request.tokens), VERIFIER_STREAM + number)[1])
        return _Visit(number=number, node=node, trials=own, level=level, debt=debt, uniforms=uniforms)

    visits = [visit(0, 0, 0, None)]
    for above in visits:  # which grows
        if above.trials:
            below = enumerate(zip(above.trials, numbers[above.node], strict=True))
            visits += [visit(number, draw.node, above.level + 1, (above.number, trial)) for trial, (draw, number) in below]
    return _Plan(request=request, trials=trials, numbers=numbers, visits=visits)


def _climb(plan: _Plan, rows: dict[int, int], results: TrialResults) -> Verdict | None:
    index = len(plan.request.tokens)
    path = [(0, 0, 0)]  # number of the visit, its node, the trials it has made
    while path:
        number, node, made = path.pop()
        row = rows[number]
        if number == node and made < len(plan.trials[node]):
            acceptance = results.acceptances[row, made]
            if math.isnan(acceptance):
                return None
            path.append((number, node, made + 1))
            if acceptance > 0:
                path.append((plan.numbers[node][made], plan.trials[node][made].node, 0))
        elif plan.request.sampler.uniforms(1, index, VERIFIER_STREAM + number)[0] < results.owed[row]:
            bonus = int(results.bonus[row])
            return None if bonus < 0 else Verdict(path=[*(above for _, above, _ in path), node], bonus=bonus)
    return None
