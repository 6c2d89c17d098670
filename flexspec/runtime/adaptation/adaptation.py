"""Makes trees fit the text and the machine at every step."""

import math
from collections.abc import Callable, Sequence

from flexspec.acceptance import AcceptanceTable, DrafterAcceptance
from flexspec.runtime.adaptation.calibration import Calibration
from flexspec.runtime.adaptation.growth import grow, path_chances
from flexspec.runtime.adaptation.node_forecast import NodeForecast
from flexspec.runtime.adaptation.step_costs import StepCosts
from flexspec.runtime.adaptation.switch import DrafterSwitch
from flexspec.runtime.adaptation.throughput import Throughput
from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.token_tree import TokenTree

_HYSTERESIS = 0.02
"""Net gain, in tokens a step, that drafting needs to begin; it goes on while there is any."""

_UNKNOWN_WORTH = 0.25
"""Tokens that another level of a drafter has to promise before its cost is known."""


class Adaptation:
    """Chooses what is verified, for the most tokens a second.

    With λ tokens a second being emitted, a pass of T seconds that emits E tokens is worth E - λT: nodes are added while
    the chance of the best is above λ times the time one more takes. Text never depends on it, since any tree will do.

    Args:
        drafters: those that propose.
        costs: seconds of a pass by its number of tokens.
        acceptance: of the drafters; it learns.
    """

    def __init__(self, drafters: Sequence[Drafter], *, costs: StepCosts, acceptance: AcceptanceTable) -> None:
        self.acceptance = acceptance
        self.costs = costs
        self.switches = {drafter.name: DrafterSwitch() for drafter in drafters}
        self._throughput = Throughput(tokens_per_s=1.0 / costs.seconds(1), step_s=costs.seconds(1))
        self._calibration = Calibration()
        self._nodes = NodeForecast()
        self._expected = 0.0  # tokens that this step's drafts will add, before calibration
        self._accepted = 0
        self._context = 64.0  # length of the texts that had the last trees
        self._drafting = True
        self._asked: dict[str, float] = {}  # and what cheaper drafters had promised
        self._levels: dict[str, float] = {}
        self._gains: dict[str, float] = {}
        self._node_cost = 0.0

    @property
    def tokens_per_s(self) -> float:
        """λ."""
        return self._throughput.tokens_per_s

    def begin_step(self) -> None:
        """Forget what was noted for the step before."""
        self._asked.clear()
        self._gains.clear()
        self._expected, self._accepted = 0.0, 0

    def by_cost(self, drafters: Sequence[str]) -> list[str]:
        """The drafters in the order in which they are asked: cheap ones first."""
        return sorted(drafters, key=lambda name: self.switches[name].seconds)

    def promised(self, trees: Sequence[TokenTree], depths: Sequence[int]) -> float:
        """Accepted tokens a request that proposals let expect; arguments as `select` takes them."""
        total = sum(sum(path_chances(tree, self.acceptance, depth)[1:]) for tree, depth in zip(trees, depths, strict=True))
        return self._calibration.factor * total / len(trees)

    def asks(self, drafter: str, requests: Sequence[DraftRequest], promised: float = 0.0) -> bool:
        """Whether a drafter is asked about `requests` in this step, in which cheaper ones promise so many tokens each."""
        new_tokens = sum(len(request.tokens) - request.prompt_length for request in requests)
        ask = self.switches[drafter].asks(
            promised, text_tokens=_text_tokens(requests), decoded_s=new_tokens / (self.tokens_per_s or math.inf)
        )
        if ask:
            self._asked[drafter] = promised
        return ask

    def chances(self, drafter: str) -> DrafterAcceptance:
        """What is known of a drafter."""
        return self.acceptance.of(drafter)

    def worth(self, drafter: str) -> float:
        """Accepted tokens, as single nodes are estimated, that pay for another level of a drafter."""
        seconds = self.switches[drafter].seconds
        paid = self.tokens_per_s * seconds / self._levels.get(drafter, 1.0) if seconds else _UNKNOWN_WORTH
        return paid / self._calibration.factor

    def drafted(self, drafter: str, requests: Sequence[DraftRequest], seconds: float, levels: int, *, is_steady: bool) -> None:
        """A drafter took `seconds` for trees of at most `levels` levels; `is_steady` as `DrafterSwitch.drafted` takes it."""
        promised = self._asked.get(drafter, 0.0)
        self.switches[drafter].drafted(seconds, is_steady=is_steady, promised=promised, text_tokens=_text_tokens(requests))
        before = self._levels.get(drafter, max(levels, 1.0))
        self._levels[drafter] = before + 0.1 * (max(levels, 1) - before)

    def select(
        self, trees: Sequence[TokenTree], *, depths: Sequence[int], room: int, budget: int, other_tokens: int, context: float
    ) -> list[TokenTree]:
        """The parts of the proposals that are worth their time.

        Args:
            trees: merged proposals, one a request.
            depths: most levels of each.
            room: most drafted nodes of one tree.
            budget: most drafted nodes of all.
            other_tokens: tokens of the pass that are not drafted, roots included.
            context: length of the requests' texts, on average.
        """
        self._context = context
        chances = self._chances_of(trees, depths)
        chosen, self._expected = grow(
            trees,
            chances,
            room=room,
            budget=budget,
            cost=self._cost(other_tokens),
            factor=self._calibration.factor,
            least_gain=self._least_gain,
        )
        self._charge(chosen, other_tokens)
        return chosen

    @property
    def can_fix_sizes(self) -> bool:
        """Whether enough is known for `sizes`."""
        return self._nodes.is_known

    def sizes(self, rooms: Sequence[int], *, budget: int, other_tokens: int, context: float) -> list[int]:
        """How many drafted nodes of each tree are worth their time, as past proposals let expect: a step without its trees at hand.

        Args:
            rooms: most drafted nodes of each tree.
            budget: as `select` takes it, like what follows.
        """
        self._context = context
        size = self._nodes.size(
            rooms, budget=budget, cost=self._cost(other_tokens), factor=self._calibration.factor, least_gain=self._least_gain
        )
        return [min(size, room) for room in rooms]

    def verified(self, proposed: Sequence[TokenTree], trees: Sequence[TokenTree], *, depths: Sequence[int], other_tokens: int) -> None:
        """In a step in which `sizes` was asked: the proposals, and what was verified of them; the rest as `select` takes it."""
        self._chances_of(proposed, depths)
        self._expected = sum(sum(path_chances(tree, self.acceptance, depth)[1:]) for tree, depth in zip(trees, depths, strict=True))
        self._charge(trees, other_tokens)

    def observe(self, proposed: TokenTree, verified: TokenTree, emitted: Sequence[int]) -> None:
        """Learn from what followed a root, also about proposals that were not verified.

        Args:
            proposed: all proposals.
            verified: what was chosen of them.
            emitted: the accepted tokens and the bonus token.
        """
        record(self.acceptance, proposed, emitted)
        accepted = _accepted(verified, emitted)
        self._accepted += len(accepted)
        for node in accepted:
            self._credit(verified, node, 1.0)

    def end_step(self, *, pass_tokens: int, emitted: int, forward_s: float, step_s: float, has_prompts: bool = False) -> None:
        """A step is over.

        Args:
            pass_tokens: tokens of its pass.
            emitted: tokens it emitted.
            forward_s: seconds of the pass.
            step_s: seconds of the whole step.
            has_prompts: whether it read prompts too; then its pass says nothing about costs and rate.
        """
        if self._expected:
            self._calibration.observe(self._expected, self._accepted)
        if not has_prompts:
            self.costs.observe(pass_tokens, forward_s, self._context)
            self._throughput.observe(emitted, step_s)
        for drafter, switch in self.switches.items():
            if drafter in self._asked:
                switch.judge(self._gains.get(drafter, 0.0), self.tokens_per_s, self._asked[drafter])
            switch.passed(step_s)

    @property
    def _least_gain(self) -> float:
        return 0.0 if self._drafting else _HYSTERESIS

    def _cost(self, other_tokens: int) -> Callable[[int], float]:
        """Of a number of drafted nodes, in tokens."""
        rate, context = self.tokens_per_s, self._context
        return lambda nodes: rate * self.costs.seconds(other_tokens + nodes, context=context)

    def _chances_of(self, proposed: Sequence[TokenTree], depths: Sequence[int]) -> list[list[float]]:
        """Of every node of the proposals; the forecast learns them."""
        chances = [path_chances(tree, self.acceptance, depth) for tree, depth in zip(proposed, depths, strict=True)]
        for own in chances:
            self._nodes.observe(own[1:])
        return chances

    def _charge(self, trees: Sequence[TokenTree], other_tokens: int) -> None:
        """Count what verifying the trees costs for those that proposed their nodes."""
        cost = self._cost(other_tokens)
        drafted = sum(tree.num_drafted for tree in trees)
        self._drafting = drafted > 0
        self._node_cost = (cost(drafted) - cost(0)) / drafted if drafted else 0.0
        for tree in trees:
            for node in range(1, len(tree.tokens)):
                self._credit(tree, node, -self._node_cost)

    def _credit(self, tree: TokenTree, node: int, tokens: float) -> None:
        """Count tokens won or lost by a node for the cheapest of those that proposed it: without the others it would be there too."""
        origins = tree.origins[node]
        drafter = origins[0].drafter
        if len(origins) > 1:
            drafter = min((origin.drafter for origin in origins), key=lambda name: self.switches[name].seconds)
        self._gains[drafter] = self._gains.get(drafter, 0.0) + tokens


def _text_tokens(requests: Sequence[DraftRequest]) -> int:
    return sum(len(request.tokens) for request in requests)


def record(table: AcceptanceTable, tree: TokenTree, emitted: Sequence[int]) -> None:
    """Count every node of `tree` whose parent was emitted: was it what followed?"""
    depths = {0: 0}  # of the nodes that were emitted
    for node in range(1, len(tree.tokens)):
        depth = depths.get(tree.parents[node], -1) + 1
        if 0 < depth <= len(emitted):
            accepted = tree.tokens[node] == emitted[depth - 1]
            if accepted:
                depths[node] = depth
            for drafter, rank, grade in tree.origins[node]:
                table.of(drafter).record(grade, rank, depth, accepted)


def _accepted(tree: TokenTree, emitted: Sequence[int]) -> list[int]:
    path: list[int] = []
    last = 0
    for node in range(1, len(tree.tokens)):
        if len(path) < len(emitted) and tree.parents[node] == last and tree.tokens[node] == emitted[len(path)]:
            path.append(node)
            last = node
    return path
