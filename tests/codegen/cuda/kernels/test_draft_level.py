"""Levels formed on the device against token trees built on the host."""

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cuda.kernels.draft_level import Level, draft_level, draft_level_reference, draft_level_variants, root_level
from flexspec.codegen.cuda.kernels.draft_top import TopTokens, draft_top_reference
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder

RUN = {"kernel": draft_level, "reference": draft_level_reference}
VOCAB = 40
LENGTHS = torch.tensor([10, 0, 50, 3], dtype=torch.int32)  # the second request is padding
ROOTS = torch.tensor([5, 0, 6, 7])


def logits_after(path: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([*path, 1]).normal(size=VOCAB) * 2).float()


def limits_of(trees: Sequence[Sequence[tuple[int, int]]]) -> torch.Tensor:
    """[R, depth, 2] of (children of a node, nodes of the level); zeros after a tree's last level."""
    depth = max(map(len, trees))
    return torch.tensor([[*tree, *[(0, 0)] * (depth - len(tree))] for tree in trees], dtype=torch.int32)


def grow(by: str, limits: torch.Tensor, widths: Sequence[int], words: int, k: int) -> list[Level]:
    """The levels of trees of a model whose logits are a function of the path, the roots' included."""
    levels = [root_level(ROOTS, LENGTHS, words)]
    paths: list[list[int]] = [[int(token)] for token in ROOTS]
    for number, width in enumerate(widths):
        before = levels[-1]
        logits = torch.stack([logits_after(path) for path in paths])
        logits[before.slots < 0] = torch.nan
        top = draft_top_reference(logits, before.slots, before.positions, before.request_rows, torch.zeros(4, dtype=torch.float64), k=k)
        after = RUN[by](before, top, LENGTHS, limits, number, width=width)
        paths = [[*paths[int(row)], int(token)] for row, token in zip(after.parent_rows, after.token_ids, strict=True)]
        levels.append(after)
    return levels


def host_tree(root: int, limits: Sequence[tuple[int, int]], width: int) -> TokenTree:
    """Every node's best level by level, of which the likeliest paths are kept; nodes in the order in which they come."""
    builder, frontier = TreeBuilder(root), [(0, [root], 0.0)]
    for branch, budget in limits:
        children = []
        for node, path, score in frontier:
            shares, ids = torch.log_softmax(logits_after(path), 0).sort(descending=True)
            children += [(node, [*path, int(token)], score + float(share)) for share, token in zip(shares[:branch], ids, strict=False)]
        edge = sorted((-score for _, _, score in children))[: min(budget, width)]
        kept = [child for child in children if edge and -child[2] <= edge[-1]]
        frontier = [(builder.add(node, path[-1]), path, score) for node, path, score in kept]
    return TokenTree(tokens=builder.tokens, parents=builder.parents)


def assert_trees(levels: Sequence[Level], limits: Sequence[Sequence[tuple[int, int]]], widths: Sequence[int], words: int) -> None:
    for request, length in enumerate(LENGTHS.tolist()):
        rows = [
            slice(request * width, request * width + int(level.counts[request])) for level, width in zip(levels, (1, *widths), strict=True)
        ]
        tokens, parents, positions, slots, contexts, owners = (
            torch.cat([getattr(level, name)[own] for level, own in zip(levels, rows, strict=True)]).tolist()
            for name in ("token_ids", "parents", "positions", "slots", "context_lens", "request_rows")
        )
        if not length:
            assert not tokens
            continue
        tree = host_tree(int(ROOTS[request]), limits[request], min(widths[1:], default=widths[0]))
        assert (tokens, parents) == (list(tree.tokens), list(tree.parents))
        assert positions == [length - 1 + depth for depth in tree.depths()]
        assert slots == list(range(length - 1, length - 1 + len(tokens)))
        assert set(contexts) == {length} and set(owners) == {request}
        # A bit row of the host's has the root's bit first; on the device the root is part of the text.
        bits = torch.cat([level.tail_bits[own] for level, own in zip(levels, rows, strict=True)]).numpy().view(np.uint32)
        found = [sum(int(word) << 32 * place for place, word in enumerate(row)) for row in bits]
        host = tree.ancestor_bits().view(np.uint32)
        assert [2 * row + 1 for row in found] == [sum(int(word) << 32 * place for place, word in enumerate(row)) for row in host]
        assert [int(level.used[request]) for level in levels] == [end - 1 for end in accumulate(own.stop - own.start for own in rows)]


def assert_padding(levels: Sequence[Level]) -> None:
    for level in levels[1:]:
        padding = level.slots < 0
        own = torch.arange(len(padding)) % (len(padding) // len(level.counts))
        assert torch.equal(padding, own >= level.counts.repeat_interleave(len(padding) // len(level.counts)))
        assert (level.parents[padding] == -1).all() and (level.slots[padding] == -1).all()
        for name in ("token_ids", "parent_rows", "positions", "request_rows", "context_lens", "tail_bits", "log_probs"):
            assert not getattr(level, name)[padding].any(), name


@pytest.mark.parametrize("by", RUN)
def test_static_trees_are_the_hosts(by: str) -> None:
    trees = [[(3, 99), (2, 99), (1, 99)], [(2, 99)], [(1, 99), (1, 99), (5, 99)], [(2, 99), (3, 99)]]
    widths, limits = (3, 8, 9), limits_of(trees)
    levels = grow(by, limits, widths, words=1, k=5)
    assert_trees(levels, trees, widths, words=1)
    assert_padding(levels)
    assert [level.counts.tolist() for level in levels] == [[1, 0, 1, 1], [3, 0, 1, 2], [6, 0, 1, 6], [6, 0, 5, 0]]
    # One captured graph serves other trees: only what the tensor holds changes.
    limits.copy_(limits_of([[(1, 99)], [(1, 99)], [(2, 99), (1, 99), (1, 99)], [(0, 0)]]))
    assert [level.counts.tolist() for level in grow(by, limits, widths[:2], words=1, k=5)[1:]] == [[1, 0, 2, 0], [0, 0, 2, 0]]


@pytest.mark.parametrize("by", RUN)
def test_adaptive_trees_keep_the_likeliest_paths(by: str) -> None:
    trees = [[(8, 6), (8, 16), (8, 16), (4, 20)], [(8, 6)], [(8, 8), (8, 5), (8, 9)], [(2, 1), (8, 3)]]
    widths = (8, 20, 20, 20)
    levels = grow(by, limits_of(trees), widths, words=2, k=8)
    assert_trees(levels, trees, widths, words=2)
    assert_padding(levels)
    assert int(levels[-1].used[0]) == 58


def test_what_exceeds_the_envelope_is_left_out() -> None:
    limits = limits_of([[(4, 99), (4, 99), (4, 99)]] * 4)
    counts = [level.counts[0].item() for level in grow("reference", limits, (4, 14, 40), words=1, k=4)]
    assert counts == [1, 4, 14, 14], "32 bits are those of 4 + 14 + 14 nodes"


SCORES = st.sampled_from([0.0, -0.5, -1.0, -1.5, -2.0, -math.inf])


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_ties_gaps_and_limits_agree_with_the_reference(data: st.DataObject) -> None:
    in_width, k, width, words = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)), data.draw(st.integers(1, 17)), 2
    rows = 2 * in_width
    before = Level(
        *(torch.zeros(rows, dtype=torch.int64 if name == "token_ids" else torch.int32) for name in Level._fields[:7]),
        tail_bits=torch.randint(-(2**31), 2**31, (rows, words), dtype=torch.int32),
        log_probs=torch.tensor(data.draw(st.lists(SCORES, min_size=rows, max_size=rows))),
        counts=torch.tensor([in_width, data.draw(st.integers(0, in_width))], dtype=torch.int32),
        used=torch.tensor([31, data.draw(st.sampled_from([0, 30, 60, 64]))], dtype=torch.int32),
    )
    ids = data.draw(st.lists(st.integers(-1, 4), min_size=rows * k, max_size=rows * k))
    scores = data.draw(st.lists(SCORES, min_size=rows * k, max_size=rows * k))
    top = TopTokens(torch.tensor(ids, dtype=torch.int32).view(rows, k), torch.tensor(scores).view(rows, k))
    limits = torch.tensor([[[k, 99]], [[data.draw(st.integers(0, 4)), data.draw(st.integers(0, 9))]]], dtype=torch.int32)
    arguments = (before, top, torch.tensor([100, 7], dtype=torch.int32), limits, 0)
    found, wanted = draft_level(*arguments, width=width), draft_level_reference(*arguments, width=width)
    for name, one, other in zip(Level._fields, found, wanted, strict=True):
        assert torch.equal(one, other), name


def test_a_wide_level_with_a_budget() -> None:
    rows = 64
    generator = torch.Generator().manual_seed(1)
    before = root_level(torch.arange(rows), torch.full((rows,), 5, dtype=torch.int32), 32)
    before = before._replace(counts=torch.tensor([rows], dtype=torch.int32), used=torch.tensor([900], dtype=torch.int32))
    before = before._replace(log_probs=torch.randn(rows, generator=generator).round())
    top = TopTokens(torch.arange(rows * 8, dtype=torch.int32).view(rows, 8), torch.randn((rows, 8), generator=generator).round())
    limits = torch.tensor([[[8, 100]]], dtype=torch.int32)
    found = draft_level(before, top, torch.tensor([5], dtype=torch.int32), limits, 0, width=128)
    scores = (before.log_probs[:, None] + top.log_probs).flatten()
    best = scores.sort(descending=True, stable=True)
    assert best.values[99] == best.values[100], "of equals the first are to be kept"
    assert found.token_ids[:100].tolist() == sorted(best.indices[:100].tolist())
    assert int(found.counts) == 100 and not found.token_ids[100:].any()
    assert found.tail_bits[99].tolist() == [0] * 31 + [1 << 7], "the place in the tail is 999"


def test_cases_that_nothing_covers_are_named() -> None:
    before = root_level(torch.zeros(129, dtype=torch.int64), torch.ones(129, dtype=torch.int32), 1)
    top = TopTokens(torch.zeros((129, 8), dtype=torch.int32), torch.zeros((129, 8)))
    with pytest.raises(UncoveredCase, match="1032 children"):
        draft_level(before, top, torch.ones(1, dtype=torch.int32), torch.ones((1, 1, 2), dtype=torch.int32), 0, width=8)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_variants_have_names_of_their_own(target: GpuTarget) -> None:
    cases = [variant.case for variant in draft_level_variants(target)]
    assert len(set(cases)) == len(cases) == 3
