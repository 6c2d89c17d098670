"""What the host is told of grown trees: int32 numbers in one piece, and how they are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from flexspec.codegen.batch import Int32
from flexspec.codegen.device_trees import BITS
from flexspec.codegen.level_growth import GrownLevel, GrownTrees


@dataclass(frozen=True, kw_only=True)
class PackedLevels:
    """Levels of the trees of some requests, the fields of `GrownLevel` in their order one level after the other, and tables of nodes.

    Attributes:
        num_requests: rows of each, some of them padding at the end.
        widths: rows of a request on each level, the roots' first.
        num_children: of every node.
        num_candidates: likewise.
        num_nodes: of each tree's table.
    """

    num_requests: int
    widths: tuple[int, ...]
    num_children: int
    num_candidates: int
    num_nodes: int

    @property
    def size(self) -> int:
        """Numbers in all."""
        return self._ends()[-1]

    def read(self, packed: Int32, count: int) -> GrownTrees:
        """The trees of the first `count` requests."""
        parts = [packed[start:stop] for start, stop in pairwise(self._ends())]
        levels: list[GrownLevel] = []
        above = 1
        for number, width in enumerate(self.widths):
            counts, tokens, parents, children, log_probs, candidates, logits = parts[7 * number : 7 * number + 7]
            rows = (self.num_requests, width)
            firsts = above * np.arange(self.num_requests, dtype=np.int32)[:, np.newaxis]
            levels.append(
                GrownLevel(
                    counts=counts[:count],
                    tokens=tokens.reshape(rows)[:count],
                    parents=np.maximum(parents.reshape(rows) - firsts, 0)[:count],
                    children=children.reshape(*rows, self.num_children)[:count],
                    log_probs=log_probs.view(np.float32).reshape(*rows, self.num_children)[:count],
                    candidates=candidates.reshape(*rows, self.num_candidates)[:count],
                    candidate_logits=logits.view(np.float32).reshape(*rows, self.num_candidates)[:count],
                )
            )
            above = width
        return GrownTrees(levels=levels, nodes=parts[-1].reshape(self.num_requests, self.num_nodes, BITS)[:count])

    def _ends(self) -> list[int]:
        """Where each part begins, and where the last ends."""
        sizes: list[int] = []
        for width in self.widths:
            rows = self.num_requests * width
            sizes += [self.num_requests, rows, rows, *[rows * self.num_children] * 2, *[rows * self.num_candidates] * 2]
        return [0, *accumulate([*sizes, self.num_requests * self.num_nodes * BITS])]


def joined(trees: Sequence[GrownTrees]) -> GrownTrees:
    """Those of several shares of the requests."""
    if len(trees) == 1:
        return trees[0]
    levels = [
        GrownLevel(**{name: np.concatenate([getattr(level, name) for level in same]) for name in GrownLevel.__dataclass_fields__})
        for same in zip(*(own.levels for own in trees), strict=True)
    ]
    return GrownTrees(levels=levels, nodes=np.concatenate([own.nodes for own in trees]))
