"""Keeps token trees within what a request may still emit and what a pass can take."""

from functools import lru_cache

from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.tree_shape import TreeSpec


@lru_cache(maxsize=4096)
def shorten(spec: TreeSpec, *, max_depth: int, max_nodes: int) -> TreeSpec:
    """The first levels of `spec` that stay within `max_depth` levels and `max_nodes` drafted nodes."""
    depth = min(spec.depth, max(max_depth, 0))
    while depth and sum(spec.level_sizes[:depth]) > max_nodes:
        depth -= 1
    return spec if depth == spec.depth else TreeSpec(widths=spec.widths[:depth])


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
    kept = [node for node, level in enumerate(depths) if level <= depth]
    renamed = {node: place for place, node in enumerate(kept)}
    return TokenTree(
        tokens=[tree.tokens[node] for node in kept],
        parents=[renamed[tree.parents[node]] if node else -1 for node in kept],
        draws={
            renamed[node]: [Draw(node=renamed[draw.node], q=draw.q) for draw in draws]
            for node, draws in tree.draws.items()
            if depths[node] < depth
        },
    )


def is_well_formed(tree: TokenTree, *, root: int, vocab_limit: int) -> bool:
    """Whether the tree hangs together, continues the token `root`, and holds only tokens the LLM may emit."""
    tokens, parents = tree.tokens, tree.parents
    if len(tokens) == 0 or len(tokens) != len(parents) or tokens[0] != root or parents[0] != -1:
        return False
    return all(0 <= parents[node] < node and 0 <= tokens[node] < vocab_limit for node in range(1, len(tokens)))


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
