"""Top-k hits from draft counts."""

import random

from flexspec.runtime.draft_counts import DraftCounts, HitCount
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.token_tree import Draw, Origin, TokenTree
from flexspec.runtime.tree_builder import TreeBuilder


def siblings(*tokens):
    builder = TreeBuilder(1)
    for token in tokens:
        builder.add(0, token)
    return builder.build()


def recorded(*steps):
    """Counts of trees of one level, each with the token that followed."""
    counts = DraftCounts()
    for proposals, token in steps:
        tree = merge_trees(1, list(proposals.items()))
        child = tree.children()[0].get(token)
        path = [0] if child is None else [0, child]
        counts.record(tree, path, len(path))
    return counts


def test_hits_of_the_first_k():
    tree = siblings(5, 6, 7)
    counts = recorded(({"a": tree}, 5), ({"a": tree}, 7), ({"a": tree}, 7), ({"a": tree}, 9))
    assert counts.hits() == counts.hits("a") == {k: HitCount(steps=4, hits=hits, is_complete=True) for k, hits in ((1, 1), (2, 1), (3, 3))}
    assert counts.hits()[3].rate == 0.75
    assert counts.hits(depth=2) == counts.hits("nobody") == DraftCounts().hits() == {}


def test_roots_of_fewer_children_are_told_apart():
    counts = recorded(({"a": siblings(5, 6)}, 6), ({"a": siblings(5)}, 6), ({"a": siblings()}, 6))
    assert counts.hits() == {1: HitCount(2, 0, True), 2: HitCount(2, 1, False)}  # a step that drafted nothing is not among them


def test_of_several_drafters_the_first_k_of_each_count():
    counts = recorded(({"a": siblings(5, 6), "b": siblings(6, 7)}, 6), ({"a": siblings(5, 6), "b": siblings()}, 6))
    assert counts.hits() == {1: HitCount(2, 1, False), 2: HitCount(2, 2, False)}
    assert counts.hits("a") == {1: HitCount(2, 0, True), 2: HitCount(2, 2, True)}
    assert counts.hits("b") == {1: HitCount(1, 1, True), 2: HitCount(1, 1, True)}


def test_two_draws_of_one_token_are_two_children():
    drawn = TokenTree(
        tokens=[1, 5], parents=[-1, 0], draws={0: [Draw(node=1, q=None)] * 2}, origins=[[], [Origin("a", 0, 0), Origin("a", 1, 0)]]
    )
    counts = DraftCounts()
    counts.record(drawn, [0, 1], 2)
    assert counts.hits() == counts.hits("a") == {1: HitCount(1, 1, True), 2: HitCount(1, 1, True)}


def test_random_trees_as_counted_one_by_one():
    generator = random.Random(3)
    counts = DraftCounts()
    ranks, widths = [], []  # at depth 2, of the steps that got there with children
    for _ in range(300):
        builder = TreeBuilder(1)
        for token in range(generator.randint(0, 3)):
            child = builder.add(0, token)
            for grandchild in range(generator.randint(0, 4)):
                builder.add(child, grandchild)
        tree = merge_trees(1, [("a", builder.build())])
        path = [0]
        while (children := [node for node, parent in enumerate(tree.parents) if parent == path[-1]]) and generator.random() < 0.8:
            path.append(generator.choice(children))
        emitted = generator.randint(1, len(path))
        counts.record(tree, path[: emitted + 1], emitted)
        below = [node for node, parent in enumerate(tree.parents) if len(path) > 1 and parent == path[1]]
        if emitted > 1 and below:
            widths.append(len(below))
            ranks += [below.index(path[2])] if len(path) > 2 else []
    expected = {
        k: HitCount(steps=len(widths), hits=sum(rank < k for rank in ranks), is_complete=min(widths) >= k)
        for k in range(1, 1 + max(widths))
    }
    assert counts.hits(depth=2) == expected and len(expected) == 4
