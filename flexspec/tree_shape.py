"""Mathematics of token-tree shapes, shared by the strategy and the runtime."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.errors import UsageError

MAX_TREE_NODES = 1024


@dataclass(frozen=True, kw_only=True)
class TreeSpec:
    """A static expansion ⟨k₁…k_m⟩: every node at depth i gets up to k_{i+1} children (SpecInfer, section 3).

    `widths` is empty for plain decoding. The root (the last emitted token) is not counted.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(isinstance(width, bool) or not isinstance(width, int) or width < 1 for width in self.widths):
            raise UsageError(f"tree={list(self.widths)}: every width must be a whole number of at least 1, for example [2, 2, 1]")
        if self.num_nodes > MAX_TREE_NODES:
            raise UsageError(
                f"tree={list(self.widths)} has {self.num_nodes} nodes; at most {MAX_TREE_NODES} are allowed: use smaller widths"
            )

    @property
    def depth(self) -> int:
        """Number of drafted levels."""
        return len(self.widths)

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """Number of drafted nodes on each level, first level first."""
        sizes: list[int] = []
        size = 1
        for width in self.widths:
            size *= width
            sizes.append(size)
        return tuple(sizes)

    @property
    def num_nodes(self) -> int:
        """Number of drafted nodes, the root not counted."""
        return sum(self.level_sizes)


def parse_tree(widths: "Sequence[int] | str") -> TreeSpec:
    """Read a tree given as a list of widths or as text such as `2,2,1`.

    Raises:
        UsageError: if a width is not a whole number of at least 1, or the tree is too large.
    """
    if isinstance(widths, str):
        try:
            return TreeSpec(widths=tuple(int(part) for part in widths.split(",")))
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"tree={widths!r}: give widths separated by commas, for example 2,2,1") from None
    if not hasattr(widths, "__iter__"):
        raise UsageError(f"tree={widths!r} is not allowed: give a list of widths, for example [2, 2, 1]")
    return TreeSpec(widths=tuple(widths))
