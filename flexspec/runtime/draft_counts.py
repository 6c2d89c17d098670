"""What became of drafted nodes: counts by depth, rank and drafter."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flexspec.runtime.token_tree import Origin, TokenTree

_ANY = -1
"""In a kind, all depths or all ranks; all drafters together are None there."""
_Kind = tuple[str | None, int, int]  # drafter, depth, rank
_UNTRIED, _REJECTED, _ACCEPTED = range(3)
_NodeKind = tuple[tuple[Origin, ...], int, int]  # who proposed it, its depth, and what became of it


class DraftCount(NamedTuple):
    """Counts of some kind of drafted nodes.

    Attributes:
        drafted: nodes verified.
        tried: those whose parent was accepted, as the root always is, and followed by a token that was emitted.
        accepted: those whose token was emitted; cut where the request ended, so that the counts match its text.
        steps: how often, over requests and LLM passes, at least one of them was tried.
    """

    drafted: int = 0
    tried: int = 0
    accepted: int = 0
    steps: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted nodes that were accepted, from 0 to 1; 0 if there are none."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_if_tried(self) -> float:
        """P(accepted | parent accepted): the share of the tried nodes that were accepted, from 0 to 1; 0 if there are none."""
        return self.accepted / self.tried if self.tried else 0.0

    @property
    def accepted_per_step(self) -> float:
        """Nodes accepted by a step that tried any; of one depth, the share of the steps that got there which went on. 0 without steps."""
        return self.accepted / self.steps if self.steps else 0.0


class HitCount(NamedTuple):
    """How often one of the first k children of a node was accepted.

    Attributes:
        steps: how often, over requests and LLM passes, children were tried.
        hits: those of them in which one of the first k was accepted.
        is_complete: whether there were k children every time; if not, a full set would have been hit at least as often.
    """

    steps: int
    hits: int
    is_complete: bool

    @property
    def rate(self) -> float:
        """Share of the steps that were hits, from 0 to 1."""
        return self.hits / self.steps


class DraftCounts:
    """Adds up what became of the nodes of verified trees.

    A node that several drafters proposed counts for each of them, with the rank that each gave it, and once among all
    nodes, with the least of these ranks.
    """

    def __init__(self) -> None:
        self._nodes: defaultdict[_NodeKind, int] = defaultdict(int)
        self._steps: defaultdict[_Kind, int] = defaultdict(int)

    def __repr__(self) -> str:
        total = self.total()
        return f"DraftCounts({total.drafted} drafted, {total.tried} tried, {total.accepted} accepted)"

    def record(self, tree: TokenTree, path: Sequence[int], num_emitted: int) -> None:
        """Count the nodes of a verified tree, which takes about 0.5 µs a node.

        Args:
            tree: merged, so that it says who proposed each node.
            path: accepted nodes from the root down.
            num_emitted: tokens emitted by this step: fewer than `path` has nodes if the request ended within them.
        """
        parents, nodes = tree.parents, self._nodes
        tried_at = path[:num_emitted]
        depths = [0] * len(parents)
        tried: set[_Kind] = set()
        for node in range(1, len(parents)):
            parent = parents[node]
            depth = depths[node] = depths[parent] + 1
            proposers = tuple(tree.origins[node])
            if parent not in tried_at:
                nodes[proposers, depth, _UNTRIED] += 1
                continue
            nodes[proposers, depth, _ACCEPTED if node in path else _REJECTED] += 1
            for drafter, rank, _ in proposers:
                tried |= {(drafter, depth, _ANY), (drafter, _ANY, rank), (drafter, _ANY, _ANY)}
            tried |= {(None, depth, _ANY), (None, _ANY, _least_rank(proposers)), (None, _ANY, _ANY)}
        for kind in tried:
            self._steps[kind] += 1

    def add(self, other: "DraftCounts") -> None:
        """Add the counts of `other`."""
        for node_kind, count in other._nodes.items():
            self._nodes[node_kind] += count
        for kind, count in other._steps.items():
            self._steps[kind] += count

    def total(self, drafter: str | None = None) -> DraftCount:
        """Of all nodes, or of those that `drafter` proposed."""
        return self._grouped(drafter, lambda depth, rank: (_ANY, _ANY)).get((drafter, _ANY, _ANY), DraftCount())

    def by_depth(self, drafter: str | None = None) -> dict[int, DraftCount]:
        """By the distance from the root, from 1: of all nodes, or of those that `drafter` proposed."""
        return {depth: count for (_, depth, _), count in self._grouped(drafter, lambda depth, rank: (depth, _ANY)).items()}

    def by_rank(self, drafter: str | None = None) -> dict[int, DraftCount]:
        """By the place among the children a drafter gave their parent, from 0: of all nodes, or of those that `drafter` proposed."""
        return {rank: count for (_, _, rank), count in self._grouped(drafter, lambda depth, rank: (_ANY, rank)).items()}

    def by_drafter(self) -> dict[str, DraftCount]:
        """By who proposed the nodes; those with several proposers count for each."""
        names = dict.fromkeys(origin.drafter for proposers, _, _ in self._nodes for origin in proposers)
        return {name: self.total(name) for name in names}

    def hits(self, drafter: str | None = None, *, depth: int = 1) -> dict[int, HitCount]:
        """By k from 1, how often one of the first k children of an accepted node was accepted (SpecInfer, Table 1).

        Args:
            drafter: whose children, in the order it gave them; None takes the first k of every drafter together.
            depth: of the children, 1 for those of the root.

        Returns:
            up to the largest number of children that a drafter gave any such node; empty if none were tried.
        """
        names = list(self.by_drafter()) if drafter is None else [drafter]
        steps = self._steps.get((drafter, depth, _ANY), 0)
        hits: defaultdict[int, int] = defaultdict(int)  # by rank; a step accepts one child at most
        had: defaultdict[tuple[str, int], int] = defaultdict(int)  # steps in which a drafter gave a child of a rank
        for (proposers, at, outcome), count in self._nodes.items():
            own = [origin for origin in proposers if origin.drafter in names]
            if at != depth or outcome == _UNTRIED or not own:
                continue
            for origin in own:
                had[origin.drafter, origin.rank] += count
            if outcome == _ACCEPTED:
                hits[_least_rank(own)] += count
        found, so_far = {}, 0
        for rank in range(1 + max((rank for _, rank in had), default=-1)):
            so_far += hits[rank]
            found[rank + 1] = HitCount(steps=steps, hits=so_far, is_complete=all(had[name, rank] == steps for name in names))
        return found

    def to_json(self) -> dict[str, Any]:
        """The counts by depth, rank and drafter as lists and dictionaries."""
        return {
            "by_depth": [{"depth": depth, **count._asdict()} for depth, count in self.by_depth().items()],
            "by_rank": [{"rank": rank, **count._asdict()} for rank, count in self.by_rank().items()],
            "by_drafter": {name: count._asdict() for name, count in self.by_drafter().items()},
        }

    def _grouped(self, drafter: str | None, group: Callable[[int, int], tuple[int, int]]) -> dict[_Kind, DraftCount]:
        """Counts of the nodes that `drafter`, or anybody, proposed, by what `group` makes of depth and rank, ascending."""
        sums: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for (proposers, depth, outcome), count in self._nodes.items():
            if drafter is None:
                sums[group(depth, _least_rank(proposers))][outcome] += count
            else:
                for origin in proposers:
                    if origin.drafter == drafter:
                        sums[group(depth, origin.rank)][outcome] += count
        counts = {}
        for name, (untried, rejected, accepted) in sorted(sums.items()):
            kind = (drafter, *name)
            counts[kind] = DraftCount(
                drafted=untried + rejected + accepted, tried=rejected + accepted, accepted=accepted, steps=self._steps.get(kind, 0)
            )
        return counts


def _least_rank(proposers: Sequence[Origin]) -> int:
    return proposers[0].rank if len(proposers) == 1 else min(origin.rank for origin in proposers)
