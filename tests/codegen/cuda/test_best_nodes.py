"""The best nodes of grown trees against a search that looks at paths."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton", reason="no Triton here")

from flexspec.codegen.cuda.best_nodes import BestNodes
from flexspec.codegen.cuda.kernels.draft_level import Level, draft_level_reference, root_level
from flexspec.codegen.cuda.kernels.draft_top import TopTokens
from flexspec.codegen.device_trees import BITS, CHILD, DEPTH, PARENT, TOKEN

K, VOCAB = 3, 6


def grown(
    rng: np.random.Generator, widths: Sequence[int], lengths: Sequence[int], branches: torch.Tensor, *, lacks_some: bool = True
) -> tuple[list[Level], list[TopTokens]]:
    """Levels as a growth forms them, of children whose shares are few, so that many paths are equally likely; a length of 0 is padding."""
    starts = torch.tensor(lengths, dtype=torch.int32)
    levels, tops = [root_level(torch.zeros(len(lengths), dtype=torch.int64), starts, 2)], []
    for number in range(len(widths) + 1):
        rows = len(levels[-1].slots)
        ids = torch.from_numpy(rng.permuted(np.tile(np.arange(VOCAB), (rows, 1)), axis=1)[:, :K].astype(np.int32))
        logs = torch.from_numpy(np.log(rng.choice([1.0, 0.5, 0.25], size=(rows, K))).astype(np.float32))
        missing = torch.arange(K) >= torch.from_numpy(rng.integers(0 if lacks_some else K, K + 1, size=rows))[:, None]
        missing |= (levels[-1].slots < 0)[:, None]
        tops.append(TopTokens(ids.masked_fill(missing, -1), logs.masked_fill(missing, -torch.inf)))
        if number < len(widths):
            limits = torch.stack([branches, torch.full_like(branches, widths[number])], dim=2)
            levels.append(draft_level_reference(levels[-1], tops[-1], starts, limits, number, width=widths[number]))
    return levels, tops


def wanted(levels: Sequence[Level], tops: Sequence[TopTokens], branches: torch.Tensor, row: int) -> list[tuple[tuple[int, ...], float]]:
    """Paths of a request's tree and their scores, the best first; of equals those of higher levels."""
    paths: dict[int, tuple[int, ...]] = {row: ()}  # of the rows of a level
    found: list[tuple[tuple[int, ...], float]] = []
    for number, (level, top) in enumerate(zip(levels, tops, strict=True)):
        if number:
            width = len(level.slots) // len(branches)
            rows = range(row * width, row * width + int(level.counts[row]))
            paths = {own: (*paths[int(level.parent_rows[own])], int(level.token_ids[own])) for own in rows}
        for own, path in paths.items():
            if level.slots[own] >= 0:
                children = zip(top.ids[own, : int(branches[row, number])].tolist(), top.log_probs[own], strict=False)
                found += [((*path, token), float(level.log_probs[own] + log)) for token, log in children if token >= 0]
    return sorted(found, key=lambda one: -one[1])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    widths=st.lists(st.integers(1, 5), max_size=4),
    num_requests=st.integers(1, 3),
    num_nodes=st.integers(1, 40),
)
def test_they_are_the_likeliest_and_every_first_part_is_a_tree(seed: int, widths: list[int], num_requests: int, num_nodes: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 9, num_requests).tolist()
    branches = torch.from_numpy(rng.integers(1, K + 1, (num_requests, len(widths) + 1)).astype(np.int32))
    levels, tops = grown(rng, widths, lengths, branches)
    best = BestNodes([1, *widths], num_requests=num_requests, num_children=K, num_nodes=num_nodes, device=torch.device("cpu"))
    table = best(levels, tops, branches).view(num_requests, best.num_nodes, -1)
    assert table.dtype == torch.int32 and best.num_nodes == min(num_nodes, K * (1 + sum(widths)))
    for row in range(num_requests):
        expected = wanted(levels, tops, branches, row)[: best.num_nodes]
        paths, bits = [()], [1]
        for number, node in enumerate(table[row].tolist(), start=1):
            if number > len(expected):
                assert node == [0, -1, 0, -1, *[0] * (len(node) - BITS)], "padding"
                continue
            assert 0 <= node[PARENT] < number
            paths.append((*paths[node[PARENT]], node[TOKEN]))
            bits.append(bits[node[PARENT]] | 1 << number)
            assert node[DEPTH] == len(paths[-1])
            assert sum((word % 2**32) << (32 * place) for place, word in enumerate(node[BITS:])) == bits[-1]
            first = K * sum([1, *widths][: node[DEPTH] - 1])  # child of the level
            assert tops[node[DEPTH] - 1].ids.view(num_requests, -1)[row, node[CHILD] - first] == node[TOKEN]
        assert paths[1:] == [path for path, _ in expected]


def test_trees_of_more_nodes_than_a_word_has_bits() -> None:
    widths, branches = [3, 9, 9, 9], torch.full((1, 5), K, dtype=torch.int32)
    levels, tops = grown(np.random.default_rng(3), widths, [5], branches, lacks_some=False)
    best = BestNodes([1, *widths], num_requests=1, num_children=K, num_nodes=128, device=torch.device("cpu"))
    table = best(levels, tops, branches)
    assert best.num_nodes == K * 31 and table.shape == (93, BITS + 3)
    for node in table.tolist():
        assert sum((word % 2**32).bit_count() for word in node[BITS:]) == node[DEPTH] + 1
