"""Mathematics of token-tree shapes, shared by the strategy and the runtime."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import lru_cache

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

    def __str__(self) -> str:
        return f"⟨{','.join(map(str, self.widths))}⟩" if self.widths else "none, plain decoding"

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


@dataclass(frozen=True, kw_only=True)
class TreeLimits:
    """Bounds of an adaptive tree, whose shape is chosen anew at every step.

    Attributes:
        depth: most drafted levels.
        branch: most children that one drafter gives a node.
        budget: most drafted nodes of one request's tree.
    """

    depth: int = 16
    branch: int = 3
    budget: int = 24

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TREE_NODES:
                raise UsageError(f"tree {name}={value!r} is not allowed: give a whole number from 1 to {MAX_TREE_NODES}")

    @property
    def num_nodes(self) -> int:
        """Most drafted nodes, the root not counted."""
        return self.budget

    @property
    def widths(self) -> tuple[int, ...]:
        """A static tree within the bounds, for drafters that know no other: one level of siblings, each continued as a chain."""
        width = min(self.branch, self.budget)
        depth = min(self.depth, self.budget // width)
        return (width,) + (1,) * (depth - 1)

    def __str__(self) -> str:
        return f"adaptive, at most {self.depth} deep, {self.branch} children a node, {self.budget} nodes"


Tree = TreeSpec | TreeLimits
PLAIN = TreeSpec(widths=())
"""No drafts."""

_LIMITS = ("depth", "branch", "budget")
_ALLOWED = "give 'auto', widths such as 2,2,1, or limits such as depth=8,branch=2,budget=16"


@lru_cache(maxsize=4096)
def shorten(tree: Tree, *, max_depth: int, max_nodes: int) -> Tree:
    """What of `tree` stays within `max_depth` levels and `max_nodes` drafted nodes: its first levels, or tighter limits."""
    if isinstance(tree, TreeLimits):
        if max_depth < 1 or max_nodes < 1:
            return PLAIN
        return TreeLimits(depth=min(tree.depth, max_depth), branch=tree.branch, budget=min(tree.budget, max_nodes))
    depth = min(tree.depth, max(max_depth, 0))
    while depth and sum(tree.level_sizes[:depth]) > max_nodes:
        depth -= 1
    return tree if depth == tree.depth else TreeSpec(widths=tree.widths[:depth])


def parse_tree(tree: "Sequence[int] | Mapping[str, int] | TreeSpec | TreeLimits | str") -> Tree:
    """Read a tree: `auto`, widths as a list or as text such as `2,2,1`, or limits as a mapping or as text such as `depth=8,budget=16`.

    Raises:
        UsageError: if it is none of these, a width or limit is not a whole number of at least 1, or the tree is too large.
    """
    if isinstance(tree, TreeSpec | TreeLimits):
        return tree
    if isinstance(tree, str):
        return _parse_text(tree)
    if isinstance(tree, Mapping):
        unknown = [name for name in tree if name not in _LIMITS]
        if unknown:
            raise UsageError(f"tree={dict(tree)!r}: {unknown[0]!r} is no limit of a tree: give some of {', '.join(_LIMITS)}")
        return TreeLimits(**tree)
    if not isinstance(tree, Iterable) or isinstance(tree, bytes | bytearray | Set):
        raise UsageError(f"tree={tree!r} is not allowed: {_ALLOWED}")
    return TreeSpec(widths=tuple(tree))


def _parse_text(text: str) -> Tree:
    if text.strip() == "auto":
        return TreeLimits()
    parts = [part.strip() for part in text.split(",")]
    try:
        if "=" not in text:
            return TreeSpec(widths=tuple(int(part) for part in parts))
        limits: dict[str, int] = {}
        for part in parts:
            name, value = (half.strip() for half in part.split("="))
            if name in limits:
                raise UsageError(f"tree={text!r} gives {name} twice: give each limit once")
            limits[name] = int(value)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"tree={text!r} is not allowed: {_ALLOWED}") from None
    return parse_tree(limits)
