"""Grows a token tree node by node, folding duplicates."""

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.tree_budget import in_preorder


class TreeBuilder:
    """Collects drafted children; nodes are named by handles, 0 being the root, in the order they were first added.

    Args:
        root: the last token of the text.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._grades = [0]
        self._children: list[dict[int, int]] = [{}]
        self._trials: dict[int, list[tuple[int, Distribution | None]]] = {}  # of nodes at which something was drawn

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, q: Distribution | None = None, *, grade: int = 0) -> int:
        """Record a trial of `token` at `parent`, and return the child's handle: an old one if the child is there already.

        Args:
            parent: handle of the parent.
            token: the drafted token.
            q: what it was drawn from; None if it was chosen and not drawn.
            grade: the drafter's confidence class of it; a child that is there already keeps its own.
        """
        if q is None and parent not in self._trials:
            return self._fold(parent, token, grade)
        trials = self._trials_at(parent)
        child = self._fold(parent, token, grade)
        trials.append((child, q))
        return child

    def child(self, parent: int, token: int) -> int | None:
        """Handle of the child of `parent` with `token`, if there is one."""
        return self._children[parent].get(token)

    def num_children(self, parent: int) -> int:
        """Number of distinct children of `parent`."""
        return len(self._children[parent])

    def build(self) -> TokenTree:
        """The tree in preorder: every first-added child, the likeliest, follows its parent at once."""
        tree = TokenTree(
            tokens=self.tokens,
            parents=self.parents,
            draws={node: [Draw(node=child, q=q) for child, q in trials] for node, trials in self._trials.items()},
            grades=self._grades if any(self._grades) else (),
        )
        return in_preorder(tree)

    def _trials_at(self, node: int) -> list[tuple[int, Distribution | None]]:
        """The trials at a node, recorded from now on: the children it has already were chosen."""
        trials = self._trials.get(node)
        if trials is None:
            trials = self._trials[node] = [(child, None) for child in self._children[node].values()]
        return trials

    def _fold(self, parent: int, token: int, grade: int) -> int:
        children = self._children[parent]
        child = children.get(token)
        if child is None:
            child = children[token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self._grades.append(grade)
            self._children.append({})
        return child
