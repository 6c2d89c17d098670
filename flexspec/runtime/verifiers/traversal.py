"""Traversal verification: from the leaves to the root."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.randomness import VERIFIER_STREAM
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.trials import acceptance, residual, trials_at


class TraversalVerifier:
    """Decides on a node only after everything below it has failed, which accepts more than deciding from the root down.

    A visit of a node has to emit, with probability `owed`, a text that goes through the node and is distributed there
    like the LLM's. Its trials come in drawing order: x, drawn from q, is visited owing min(1, owed * p(x) / q(x)). Of what
    the node owes, max(0, owed * p - q) is then left, with mass R, and the visit of x fails with probability
    R + 1 - owed, whatever x was: so the node goes on with owed = R / (R + 1 - owed) and p = that residual, normalised.
    After its last trial it ends the accepted path with probability `owed`, the bonus token coming from p. The root owes 1.

    Everything under a child belongs to the first trial of its token: another one of the same token is a leaf. Every visit
    has a number, and with it chance of its own, so that what is decided at one place does not depend on what was elsewhere.
    On a chain this is block verification (Sun et al., "Block verification accelerates speculative decoding", 2024); on
    trees see Weng et al., "Traversal verification for speculative tree decoding", 2025. At temperature 0 it is the greedy walk.
    """

    name = "traversal"
    children = Children.DISTINCT

    def verify(self, tree: TokenTree, logits: Callable[[int], torch.Tensor], sampler: RequestSampler, index: int) -> Verdict:
        """As `Verifier.verify`; reads the trials in `tree.draws`, and asks for logits below the accepted path too."""
        children = tree.children()
        trials = [trials_at(tree, node, children) for node in range(len(tree.tokens))]
        numbers = visit_numbers(trials)
        visits = [_Visit(number=0, node=0, owed=1.0, trials=zip(trials[0], numbers[0], strict=True))]
        while True:
            visit = visits[-1]
            trial, number = next(visit.trials, (None, 0))
            # Siblings share a text position, so all decisions of the step belong to that of its first one.
            draws = sampler.draws(index, VERIFIER_STREAM + visit.number)
            if trial is None and not draws.bernoulli(visit.owed):
                visits.pop()
                visits[-1].fail()
                continue
            if visit.p is None:
                visit.p = sampler.distribution(logits(visit.node), [tree.tokens[above.node] for above in visits[1:]])
            if trial is None:
                return Verdict(path=[above.node for above in visits], bonus=draws.choice(visit.p))
            visit.begin(trial, tree.tokens[trial.node])
            owed = acceptance(visit.p, visit.token, trial.q, visit.owed)
            if owed == 0:
                visit.fail()
                continue
            below = zip(trials[trial.node], numbers[trial.node], strict=True) if number == trial.node else iter(())
            visits.append(_Visit(number=number, node=trial.node, owed=owed, trials=below))


def visit_numbers(trials: Sequence[Sequence[Draw]]) -> list[list[int]]:
    """For each trial at each node, the number of the visit that it makes of its child.

    The first trial of a child has the child's own number, so that the root's is 0; others have numbers behind those of all
    nodes, and visit the child as a leaf.

    Args:
        trials: of each node, in drawing order.
    """
    further = count(len(trials))
    numbers: list[list[int]] = []
    for draws in trials:
        children: set[int] = set()
        numbers.append([])
        for draw in draws:
            numbers[-1].append(next(further) if draw.node in children else draw.node)
            children.add(draw.node)
    return numbers


@dataclass(kw_only=True)
class _Visit:
    """A node between its first trial and the decision on it.

    Attributes:
        number: the visit's.
        node: the node.
        owed: probability with which a text through it is still to be emitted.
        trials: those that have not begun, and the numbers of their visits.
        p: how the token after it is distributed in that text; None until it is needed.
        token: what the trial under way drafts.
        q: what that was drawn from; None for a point mass.
    """

    number: int
    node: int
    owed: float
    trials: Iterator[tuple[Draw, int]]
    p: Distribution | None = None
    token: int = -1
    q: Distribution | None = None

    def begin(self, trial: Draw, token: int) -> None:
        """A trial is under way."""
        self.token, self.q = int(token), trial.q

    def fail(self) -> None:
        """The trial under way emits nothing."""
        assert self.p is not None
        self.p, left = residual(self.p, self.token, self.q, self.owed)
        failing = left + (1.0 - self.owed)
        # Where rounding says that the trial could not fail, the whole debt is left.
        self.owed = left / failing if failing > 0 else 1.0
