"""Keeps token trees within what a request may still emit and what a pass can take."""

from collections.abc import Sequence
from dataclasses import replace
from operator import index

from flexspec.runtime.token_tree import Draw, TokenTree


def clip(tree: TokenTree, *, max_depth: int, max_nodes: int) -> TokenTree:
    """Drop whole levels from the bottom of `tree` until it is within the limits.

    Several drafters, or one that ignores its spec, may propose more than was asked for. Levels are counted in trials and
    not in distinct tokens: how many trials a level has was known before any of its tokens was drawn, so dropping it
    leaves sampling exact: a node kept or dropped for the token that came out would bias it.
    """
    depths = tree.depths()
    trials = _trials_by_level(tree, depths)
    depth, total = 0, 0
    while depth + 1 < len(trials) and depth < max_depth and total + trials[depth + 1] <= max_nodes:
        depth += 1
        total += trials[depth]
    if depth + 1 == len(trials):
        return tree
    return subtree(tree, [node for node, level in enumerate(depths) if level <= depth])


def subtree(tree: TokenTree, kept: Sequence[int]) -> TokenTree:
    """The tree of the nodes `kept`, in this order: the root first, and every parent before its children.

    Stochastic verification stays exact only if no node was dropped for the token that came out.
    """
    renamed = {node: place for place, node in enumerate(kept)}
    draws = {}
    for node, trials in tree.draws.items():
        left = [Draw(node=renamed[trial.node], q=trial.q) for trial in trials if trial.node in renamed]
        if left and node in renamed:
            draws[renamed[node]] = left
    return TokenTree(
        tokens=[tree.tokens[node] for node in kept],
        parents=[renamed[tree.parents[node]] if node else -1 for node in kept],
        draws=draws,
        grades=[tree.grades[node] for node in kept] if tree.grades else (),
        origins=[tree.origins[node] for node in kept] if tree.origins else (),
    )


def in_preorder(tree: TokenTree) -> TokenTree:
    """The same tree, every first child right after its parent.

    So the likeliest path lies in the cache as it would in a chain, and targets that sum in slot order round it alike.
    """
    if tree.is_chain():
        return tree
    children: list[list[int]] = [[] for _ in tree.tokens]
    for node in range(len(tree.tokens) - 1, 0, -1):
        children[tree.parents[node]].append(node)
    order: list[int] = []
    stack = [0]
    while stack:
        node = stack.pop()
        order.append(node)
        stack += children[node]
    return tree if all(map(int.__eq__, order, range(len(order)))) else subtree(tree, order)


def with_plain_numbers(tree: TokenTree) -> TokenTree:
    """The same tree with tokens, parents and grades that are Python's own integers: anybody's drafter may give NumPy's.

    Raises:
        TypeError: if some are no integers.
    """
    if all(type(number) is int for part in (tree.tokens, tree.parents, tree.grades) for number in part):
        return tree
    tokens, parents, grades = ([index(number) for number in part] for part in (tree.tokens, tree.parents, tree.grades))
    return replace(tree, tokens=tokens, parents=parents, grades=grades)


def is_well_formed(tree: TokenTree, *, root: int, vocab_limit: int) -> bool:
    """Whether the tree hangs together, continues the token `root`, holds only tokens the LLM may emit, and records possible draws."""
    tokens, parents = tree.tokens, tree.parents
    if len(tokens) == 0 or len(tokens) != len(parents) or tokens[0] != root or parents[0] != -1:
        return False
    if tree.grades and (len(tree.grades) != len(tokens) or min(tree.grades) < 0):
        return False
    if not all(0 <= parents[node] < node and 0 <= tokens[node] < vocab_limit for node in range(1, len(tokens))):
        return False
    return all(0 <= node < len(tokens) for node in tree.draws) and all(
        0 < trial.node < len(tokens) and parents[trial.node] == node and (trial.q is None or trial.q.prob(tokens[trial.node]) > 0)
        for node, trials in tree.draws.items()
        for trial in trials
    )


def _trials_by_level(tree: TokenTree, depths: list[int]) -> list[int]:
    trials = [0] * (max(depths) + 1)
    if not tree.draws:
        for level in depths:
            trials[level] += 1
        return trials
    trials[0] = 1
    for node, parent in enumerate(tree.parents):
        if parent >= 0 and parent not in tree.draws:
            trials[depths[node]] += 1
    for node, draws in tree.draws.items():
        if draws:
            trials[depths[node] + 1] += len(draws)
    return trials
