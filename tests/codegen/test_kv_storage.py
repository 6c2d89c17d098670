from dataclasses import replace

import numpy as np
import pytest
import torch

from flexspec.codegen.kv_storage import KVShape, KVStorage

SHAPE = KVShape(num_layers=2, num_kv_heads=3, head_dim=5, padded_head_dim=16, dtype=torch.bfloat16)


def filled() -> KVStorage:
    kv = KVStorage(SHAPE, num_blocks=2, block_size=4)
    kv.keys.copy_(torch.arange(8.0).view(1, 8, 1, 1).expand_as(kv.keys))
    kv.values.copy_(-kv.keys)
    return kv


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_it_starts_as_zeros_of_the_right_size() -> None:
    kv = KVStorage(SHAPE, num_blocks=2, block_size=4)
    assert kv.keys.shape == kv.values.shape == (2, 8, 3, 16) and kv.keys.dtype == torch.bfloat16
    assert not kv.keys.any() and not kv.values.any()
    assert kv.num_bytes == 8 * SHAPE.bytes_per_slot == 2 * 2 * 8 * 3 * 16 * 2


@pytest.mark.parametrize(
    ("sources", "destinations", "expected"),
    [
        ((5, 7), (2, 3), [0, 1, 5, 7, 4, 5, 6, 7]),
        ((1, 2, 3), (2, 3, 4), [0, 1, 1, 2, 3, 5, 6, 7]),  # each source is the next one's destination
        ((2, 3, 4), (1, 2, 3), [0, 2, 3, 4, 4, 5, 6, 7]),
        ((0, 7), (7, 0), [7, 1, 2, 3, 4, 5, 6, 0]),
        ((3, 3), (0, 1), [3, 3, 2, 3, 4, 5, 6, 7]),
        ((6,), (6,), [0, 1, 2, 3, 4, 5, 6, 7]),
        ((), (), [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_move_reads_all_sources_first(sources: tuple[int, ...], destinations: tuple[int, ...], expected: list[int]) -> None:
    kv = filled()
    kv.move(int32(*sources), int32(*destinations))
    for layer in range(2):
        assert kv.keys[layer, :, 0, 0].tolist() == expected
        assert kv.values[layer, :, 2, 15].tolist() == [-slot for slot in expected]


def test_move_takes_views_of_larger_arrays() -> None:
    kv = filled()
    pairs = np.array([[5, 2], [7, 3]], dtype=np.int32)
    kv.move(pairs[:, 0], pairs[:, 1])
    assert kv.keys[0, :, 0, 0].tolist() == [0, 1, 5, 7, 4, 5, 6, 7]


def test_room_for_requests_comes_in_blocks_of_the_kind_asked_for() -> None:
    whole = KVStorage.of_requests(SHAPE, 37, num_requests=3)
    assert (whole.num_blocks, whole.block_size) == (3, 37)
    paged = KVStorage.of_requests(replace(SHAPE, page_size=16), 37, num_requests=2)
    assert (paged.num_blocks, paged.block_size) == (6, 16)
    assert paged.block_table.tolist() == [[0, 1, 2, 3, 4, 5]] and paged.block_table.dtype == np.int32
