"""Grows a token tree node by node, folding duplicates."""

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import Draw, Origin, TokenTree


class TreeBuilder:
    """Collects drafted children; nodes are named by handles, 0 being the root, in the order they were first added.

    Args:
        root: the last token of the text.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self._children: list[dict[int, int]] = [{}]
        self._trials: list[list[Draw]] = [[]]
        self._grades = [0]
        self._origins: list[list[Origin]] = [[]]

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
        child = self._fold(parent, token, grade)
        self._trials[parent].append(Draw(node=child, q=q))
        return child

    def child(self, parent: int, token: int) -> int | None:
        """Handle of the child of `parent` with `token`, if there is one."""
        return self._children[parent].get(token)

    def num_children(self, parent: int) -> int:
        """Number of distinct children of `parent`."""
        return len(self._children[parent])

    def graft(self, tree: TokenTree, drafter: str) -> None:
        """Add all of `tree`, another proposal for the same root, by the drafter of that name.

        Its trials come after those already here; children it records no trials for were chosen.
        """
        assert tree.tokens[0] == self.tokens[0], "trees of different roots cannot be merged"
        handles = [0] * len(tree.tokens)
        ranks = [0] * len(tree.tokens)
        for node in range(1, len(tree.tokens)):
            parent, grade = tree.parents[node], tree.grades[node] if tree.grades else 0
            handle = handles[node] = self._fold(handles[parent], tree.tokens[node], grade)
            self._origins[handle].append(Origin(drafter, ranks[parent], grade))
            ranks[parent] += 1
            if parent not in tree.draws:
                self._trials[handles[parent]].append(Draw(node=handle, q=None))
        for node, draws in tree.draws.items():
            self._trials[handles[node]] += [Draw(node=handles[draw.node], q=draw.q) for draw in draws]

    def build(self) -> TokenTree:
        """The tree in preorder: every first-added child, the likeliest, follows its parent at once.

        So the likeliest path lies in the cache as it would in a chain, and targets that sum in slot order round it alike.
        """
        order: list[int] = []
        stack = [0]
        while stack:
            handle = stack.pop()
            order.append(handle)
            stack += reversed(self._children[handle].values())
        places = {handle: place for place, handle in enumerate(order)}
        return TokenTree(
            tokens=[self.tokens[handle] for handle in order],
            parents=[-1, *(places[self.parents[handle]] for handle in order[1:])],
            draws={
                place: [Draw(node=places[draw.node], q=draw.q) for draw in self._trials[handle]]
                for place, handle in enumerate(order)
                if self._trials[handle]
            },
            grades=[self._grades[handle] for handle in order] if any(self._grades) else (),
            origins=[self._origins[handle] for handle in order] if any(self._origins) else (),
        )

    def _fold(self, parent: int, token: int, grade: int) -> int:
        children = self._children[parent]
        child = children.get(token)
        if child is None:
            child = children[token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self._children.append({})
            self._trials.append([])
            self._grades.append(grade)
            self._origins.append([])
        return child
