"""Drafters for enumeration: trees whose children are drawn from, or chosen by, a table of distributions."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.draws import Draws
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers.trials import trials_at

Text = tuple[int, ...]
Table = Callable[[Text], Distribution]
Propose = Callable[[Text, Draws], TokenTree]
Children = Callable[[Distribution, int, Draws], Iterator[tuple[int, Distribution | None]]]


def to_distribution(weights: Sequence[float]) -> Distribution:
    """Normalised, zeros left out."""
    array = np.array(weights, dtype=np.float64)
    ids = np.flatnonzero(array)
    return Distribution(ids=ids, probs=array[ids] / array[ids].sum())


def random_table(seed: int, vocab: int, *, zeros: float = 0.0, like: Table | None = None) -> Table:
    """Distributions hashed from the text; with `like`, mixed half and half with those of another table."""
    known: dict[Text, Distribution] = {}

    def table(text: Text) -> Distribution:
        if text not in known:
            rng = np.random.default_rng([seed, *text, 1])  # seeds that differ by zeros at the end are the same
            weights = rng.dirichlet(np.full(vocab, 0.7))
            weights[rng.random(vocab) < zeros] = 0
            weights[rng.integers(vocab)] += 0.05
            if like is not None:
                weights = weights + [like(text).prob(token) for token in range(vocab)]
            known[text] = to_distribution(weights)
        return known[text]

    return table


def drawn(q: Distribution, width: int, draws: Draws) -> Iterator[tuple[int, Distribution]]:
    """Drawn with replacement."""
    for _ in range(width):
        yield draws.choice(q), q


def distinct(q: Distribution, width: int, draws: Draws) -> Iterator[tuple[int, Distribution]]:
    """Drawn without replacement, until nothing is left."""
    for _ in range(min(width, len(q.ids))):
        token = draws.choice(q)
        yield token, q
        left = np.where(q.ids == token, 0.0, q.probs)
        if left.any():
            q = Distribution(ids=q.ids[left > 0], probs=left[left > 0] / left.sum())


def chosen(q: Distribution, width: int, draws: Draws) -> Iterator[tuple[int, None]]:
    """The likeliest ones."""
    for place in np.argsort(-q.probs, kind="stable")[:width]:
        yield int(q.ids[place]), None


KINDS: dict[str, Children] = {"chosen": chosen, "drawn": drawn, "distinct": distinct}


def tree_of(children: Children, widths: Sequence[int], q: Table) -> Propose:
    """Static trees; a token that comes twice at a node is one child with one family."""

    def propose(text: Text, draws: Draws) -> TokenTree:
        builder = TreeBuilder(text[-1])
        frontier = {0: text}
        for width in widths:
            below: dict[int, Text] = {}
            for node, path in frontier.items():
                for token, source in children(q(path), width, draws):
                    below[builder.add(node, token, source)] = (*path, token)
            frontier = below
        return builder.build()

    return propose


def merged(*proposals: Propose) -> Propose:
    """One drafter after the other, folded into one tree."""

    def propose(text: Text, draws: Draws) -> TokenTree:
        return merge_trees(text[-1], [(str(number), proposal(text, draws)) for number, proposal in enumerate(proposals)])

    return propose


def falsified(honest: Propose, change: Callable[[list[Draw], TokenTree, Text], list[Draw]]) -> Propose:
    """Another proposal with the record of the trials at every node changed; `change` gets the text before them."""

    def propose(text: Text, draws: Draws) -> TokenTree:
        tree = honest(text, draws)
        texts = [text]
        for node in range(1, len(tree.tokens)):
            texts.append((*texts[tree.parents[node]], tree.tokens[node]))
        children = tree.children()
        changed = {node: change(list(trials_at(tree, node, children)), tree, texts[node]) for node, below in enumerate(children) if below}
        return TokenTree(tokens=tree.tokens, parents=tree.parents, draws=changed)

    return propose
