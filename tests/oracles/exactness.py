"""Exact laws of speculative sampling on tables: what is drafted, what is verified, what comes out."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers.base import Verifier
from oracles.enumerate import EnumeratedDraws, law

Text = tuple[int, ...]
Table = Callable[[Text], Distribution]
Propose = Callable[[Text, Draws], TokenTree]


class TableSampler(RequestSampler):
    """A sampler whose `logits` are a text's tokens, looked up in a table of distributions, and whose draws are given."""

    def __init__(self, table: Table, draws: Draws) -> None:
        super().__init__(SamplingParams(temperature=1.0), seed=0, vocab_limit=1 << 20)
        self._table = table
        self._draws = draws

    def distribution(self, logits: torch.Tensor, path: Sequence[int] = ()) -> Distribution:
        return self._table(tuple(logits.tolist()))

    def draws(self, index: int, stream: int = 0) -> Draws:
        return self._draws


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
            rng = np.random.default_rng([seed, 1, *text])
            weights = rng.dirichlet(np.full(vocab, 0.7))
            weights[rng.random(vocab) < zeros] = 0
            weights[rng.integers(vocab)] += 0.05
            if like is not None:
                weights = weights + [like(text).prob(token) for token in range(vocab)]
            known[text] = to_distribution(weights)
        return known[text]

    return table


def drawn_tree(widths: Sequence[int], q: Table) -> Propose:
    """Every node's children drawn from `q`, one after the other, with replacement."""

    def propose(text: Text, draws: Draws) -> TokenTree:
        builder = TreeBuilder(text[-1])
        frontier = {0: text}
        for width in widths:
            below: dict[int, Text] = {}
            for node, path in frontier.items():
                for _ in range(width):
                    token = draws.choice(q(path))
                    below[builder.add(node, token, q(path))] = (*path, token)
            frontier = below
        return builder.build()

    return propose


def chosen_tree(widths: Sequence[int], q: Table) -> Propose:
    """Every node's children the likeliest ones under `q`."""

    def propose(text: Text, draws: Draws) -> TokenTree:
        builder = TreeBuilder(text[-1])
        frontier = {0: text}
        for width in widths:
            below: dict[int, Text] = {}
            for node, path in frontier.items():
                best = q(path).ids[np.argsort(-q(path).probs, kind="stable")[:width]]
                below |= {builder.add(node, token): (*path, token) for token in best.tolist()}
            frontier = below
        return builder.build()

    return propose


def merged(*proposals: Propose) -> Propose:
    """One drafter after the other, folded into one tree."""

    def propose(text: Text, draws: Draws) -> TokenTree:
        builder = TreeBuilder(text[-1])
        for number, proposal in enumerate(proposals):
            builder.graft(proposal(text, draws), str(number))
        return builder.build()

    return propose


def step(text: Text, propose: Propose, verifier: Verifier, p: Table, draws: Draws) -> Text:
    """The text after one speculative step."""
    tree = propose(text, draws)
    paths: list[Text] = [text]
    for node in range(1, len(tree.tokens)):
        paths.append((*paths[tree.parents[node]], tree.tokens[node]))
    verdict = verifier.verify(tree, lambda node: torch.tensor(paths[node]), TableSampler(p, draws), len(text))
    return (*paths[verdict.path[-1]], verdict.bonus)


def largest_error(propose: Propose, verifier: Verifier, p: Table, *, horizon: int, steps: int = 1) -> float:
    """Largest difference between the law of the next `horizon` tokens and the LLM's, over all texts.

    `steps` steps are made, longer texts cut and shorter ones completed with the LLM.
    """
    root: Text = (0,)
    length = len(root) + horizon

    def program(draws: EnumeratedDraws) -> Text:
        text = root
        for _ in range(steps):
            if len(text) < length:
                text = step(text, propose, verifier, p, draws)
        return text[:length]

    found = completed(law(program), p, length)
    wanted = completed({root: 1.0}, p, length)
    return max(abs(found.get(text, 0.0) - wanted.get(text, 0.0)) for text in found.keys() | wanted.keys())


def completed(emitted: dict[Text, float], p: Table, length: int) -> dict[Text, float]:
    """The law of texts of `length` tokens when shorter ones go on with the LLM."""
    result: dict[Text, float] = {}
    left = dict(emitted)
    while left:
        text, probability = left.popitem()
        if len(text) == length:
            result[text] = result.get(text, 0.0) + probability
            continue
        following = p(text)
        for token, share in zip(following.ids.tolist(), following.probs.tolist(), strict=True):
            left[(*text, token)] = left.get((*text, token), 0.0) + probability * share
    return result
