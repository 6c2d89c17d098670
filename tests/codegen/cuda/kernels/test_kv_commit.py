import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cuda.kernels.kv_commit import kv_commit, kv_commit_reference
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.lazy_memory import lazy_zeros

BLOCK = 8


def cache(layers: int, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Every byte of it different from those around."""
    size = (layers, slots, kv_heads, head_dim * dtype.itemsize)
    return tuple(torch.randint(0, 256, size, dtype=torch.uint8).view(dtype) for _ in range(2))  # type: ignore[return-value]


def int32(numbers: list[int]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def assert_moves(keys: torch.Tensor, values: torch.Tensor, sources: list[int], destinations: list[int]) -> None:
    expected = [tensor.view(torch.uint8).clone() for tensor in (keys, values)]
    for tensor in expected:
        read = tensor.clone()
        for source, destination in zip(sources, destinations, strict=True):
            if source >= 0 and destination >= 0:
                tensor[:, destination] = read[:, source]
    for commit in (kv_commit_reference, kv_commit):
        new_keys, new_values = keys.clone(), values.clone()
        commit(new_keys, new_values, int32(sources), int32(destinations))
        assert torch.equal(new_keys.view(torch.uint8), expected[0]) and torch.equal(new_values.view(torch.uint8), expected[1])


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "dtype"),
    [
        (1, 8, torch.bfloat16),  # 16 bytes
        (3, 80, torch.float16),
        (8, 128, torch.bfloat16),  # four chunks of words
        (3, 96, torch.float32),  # no whole number of chunks
        (2, 24, torch.float8_e4m3fn),
        (1, 64, torch.float8_e4m3fnuz),
    ],
)
def test_all_types_and_sizes_of_slots(kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    keys, values = cache(2, 24, kv_heads, head_dim, dtype)
    # 12 is read by one move and written by the next.
    assert_moves(keys, values, [10, 12, -1, 15, 20], [10, 11, -1, 12, 13])


@st.composite
def commits(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Physical moves of the accepted paths of some requests, on shuffled blocks, with padding between; and the slots there are."""
    requests = draw(st.integers(1, 4))
    blocks_each = 5
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    table = rng.permutation(requests * blocks_each).reshape(requests, blocks_each)
    sources, destinations = [], []
    for row in range(requests):
        committed, nodes = int(rng.integers(0, 10)), int(rng.integers(1, 30))
        path = np.flatnonzero(rng.random(nodes) < rng.random())
        for step, node in enumerate(path):
            for slot, moves in ((committed + node, sources), (committed + step, destinations)):
                moves.append(int(table[row, slot // BLOCK]) * BLOCK + int(slot) % BLOCK)
            if rng.random() < 0.1:
                sources.append(-1)
                destinations.append(-1)
    return sources, destinations, requests * blocks_each * BLOCK


@settings(max_examples=30, deadline=None)
@given(commits())
def test_accepted_paths_of_many_requests(case: tuple[list[int], list[int], int]) -> None:
    sources, destinations, slots = case
    assert_moves(*cache(1, slots, 1, 16, torch.float16), sources, destinations)


def test_many_moves_in_a_row() -> None:  # several batches, each writing what the one before has read
    keys, values = cache(2, 104, 1, 16, torch.bfloat16)
    assert_moves(keys, values, list(range(4, 104)), list(range(100)))
    assert_moves(keys, values, list(range(3, 103, 2)), list(range(2, 52)))


def test_a_cache_of_more_than_2_to_the_31_words() -> None:
    slots = 2**31 // 4 + 8
    cache = lazy_zeros((1, slots, 1, 4), torch.float32)
    cache[0, slots - 3] = 1.0
    kv_commit(cache, cache, int32([slots - 3]), int32([slots - 7]))
    assert (cache[0, slots - 7] == 1.0).all()


def test_nothing_to_move() -> None:
    keys, values = cache(2, 8, 1, 16, torch.bfloat16)
    assert_moves(keys, values, [], [])
    assert_moves(keys, values, [-1, -1], [-1, -1])
    assert_moves(keys, values, [-1, 4], [3, -1])


def test_slots_of_odd_sizes_are_refused() -> None:
    keys, values = cache(1, 8, 1, 6, torch.bfloat16)
    with pytest.raises(UncoveredCase, match=r"1 x 6 x torch\.bfloat16"):
        kv_commit(keys, values, int32([1]), int32([0]))
