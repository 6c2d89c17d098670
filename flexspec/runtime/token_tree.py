"""Token trees: what drafters propose and the LLM verifies in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from flexspec.codegen.batch import Int32
from flexspec.runtime.distribution import Distribution


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One trial at a node: the child `node`, and the distribution its token was drawn from.

    `q` is None for a child that was chosen and not drawn: verification takes it for a point mass on its token.
    """

    node: int
    q: Distribution | None


class Origin(NamedTuple):
    """Who proposed a node.

    Attributes:
        drafter: the drafter's name.
        rank: the node's place among the children this drafter gave its parent, from 0.
        grade: the drafter's confidence class of it.
    """

    drafter: str
    rank: int
    grade: int


@dataclass(frozen=True, kw_only=True)
class TokenTree:
    """Node 0 is the last token of the text; the others are drafts, every parent before its children.

    Attributes:
        tokens: token id of each node.
        parents: parent of each node; -1 for the root.
        draws: for a node, the trials at it in drawing order; two draws of one token name the same child twice.
            Only stochastic verifiers read it; children of a node without recorded trials count as chosen, in node order.
        grades: the drafter's confidence class of each node, a small number whose meaning is the drafter's own: statistics
            are kept for each, and adaptive trees go by them. () if the drafter makes no difference.
        origins: of each node, who proposed it; filled in when trees are merged.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    draws: dict[int, list[Draw]] = field(default_factory=dict)
    grades: Sequence[int] = ()
    origins: Sequence[Sequence[Origin]] = ()

    @classmethod
    def root(cls, token: int) -> "TokenTree":
        """The tree of plain decoding: the last token and no drafts."""
        return cls(tokens=(token,), parents=(-1,))

    @property
    def num_drafted(self) -> int:
        """Number of nodes without the root."""
        return len(self.tokens) - 1

    def children(self) -> list[dict[int, int]]:
        """For each node, its children by token id, in node order; of two children with one token, the first."""
        children: list[dict[int, int]] = [{} for _ in self.tokens]
        for node in range(1, len(self.tokens)):
            children[self.parents[node]].setdefault(self.tokens[node], node)
        return children

    def has_twins(self) -> bool:
        """Whether two children of a node have the same token."""
        return len(set(zip(self.parents, self.tokens, strict=True))) < len(self.tokens)

    def depths(self) -> list[int]:
        """Distance of each node from the root."""
        depths = [0] * len(self.tokens)
        for node in range(1, len(self.tokens)):
            depths[node] = depths[self.parents[node]] + 1
        return depths

    def is_chain(self) -> bool:
        """Whether every node's parent is the node before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def ancestor_bits(self) -> Int32:
        """[nodes, words] int32 rows: a child's row is its parent's row plus its own bit."""
        rows: list[int] = []
        for node, parent in enumerate(self.parents):
            rows.append((rows[parent] if parent >= 0 else 0) | 1 << node)
        words = (len(rows) + 31) // 32
        packed = b"".join(row.to_bytes(4 * words, "little") for row in rows)
        return np.frombuffer(packed, dtype="<i4").reshape(len(rows), words)
