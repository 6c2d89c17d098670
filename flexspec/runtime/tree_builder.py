"""Grows a token tree node by node, folding duplicates."""

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import Draw, TokenTree


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

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, q: Distribution | None = None) -> int:
        """Record a trial of `token` at `parent`, and return the child's handle: an old one if the child is there already.

        Args:
            parent: handle of the parent.
            token: the drafted token.
            q: what it was drawn from; None if it was chosen and not drawn.
        """
        child = self._fold(parent, token)
        self._trials[parent].append(Draw(node=child, q=q))
        return child

    def child(self, parent: int, token: int) -> int | None:
        """Handle of the child of `parent` with `token`, if there is one."""
        return self._children[parent].get(token)

    def num_children(self, parent: int) -> int:
        """Number of distinct children of `parent`."""
        return len(self._children[parent])

    def graft(self, tree: TokenTree) -> None:
        """Add all of `tree`, another proposal for the same root; its trials come after those already here."""
        assert tree.tokens[0] == self.tokens[0], "trees of different roots cannot be merged"
        handles = [0] * len(tree.tokens)
        for node in range(1, len(tree.tokens)):
            handles[node] = self._fold(handles[tree.parents[node]], tree.tokens[node])
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
        )

    def _fold(self, parent: int, token: int) -> int:
        children = self._children[parent]
        child = children.get(token)
        if child is None:
            child = children[token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self._children.append({})
            self._trials.append([])
        return child
