"""A row's logits are bitwise the same whatever shares its pass, however the cache lies, in a tree or in a chain."""

import numpy as np
import pytest
import torch
from native_cases import DTYPES, Request, SmallModel, batch_of, path

from flexspec.codegen.cpu.native import NativeLibrary
from flexspec.codegen.kv_storage import KVStorage

LENGTH = 210


def text(seed: int, length: int = LENGTH) -> list[int]:
    return np.random.default_rng(seed).integers(0, 101, length).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "sinks"), [(None, False), (50, False), (50, True)])
def test_chunks(library: NativeLibrary, dtype: torch.dtype, window: int | None, sinks: bool) -> None:
    model = SmallModel(library, dtype, num_threads=2, window=window, sinks=sinks)
    (expected,) = model.chains([text(0)], LENGTH)
    assert expected.std() > 0.1
    for chunk in (1, 2, 3, 5, 8, 16, 70, 200):
        (got,) = model.chains([text(0)], chunk)
        assert torch.equal(got, expected), f"chunks of {chunk}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_batches_and_threads(library: NativeLibrary, dtype: torch.dtype) -> None:
    model = SmallModel(library, dtype, num_threads=1)
    texts = [text(i, length) for i, length in enumerate((60, 1, 37, 8, 55, 23, 16, 40))]
    alone = [model.chains([t], 64)[0] for t in texts]
    for threads in (1, 2, 3):
        model = SmallModel(library, dtype, num_threads=threads)
        for count, block_size, chunk in ((3, 256, 9), (8, 16, 20), (8, 4, 1)):
            for got, expected in zip(model.chains(texts[:count], chunk, block_size=block_size), alone, strict=False):
                assert torch.equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "sinks"), [(None, False), (5, False), (5, True)])
@pytest.mark.parametrize("context", [0, 29, 130])
def test_trees_equal_chains(library: NativeLibrary, dtype: torch.dtype, window: int | None, sinks: bool, context: int) -> None:
    model = SmallModel(library, dtype, num_threads=2, window=window, sinks=sinks)
    random = np.random.default_rng(context)
    parents = tuple(int(random.integers(max(-1, i - 6), i)) for i in range(45))
    prompt, nodes = text(3, context), text(4, len(parents))
    kv = KVStorage(model.kv_shape, num_blocks=40, block_size=8)
    table = random.permutation(40).astype(np.int32)[None]
    if prompt:
        model.run(batch_of([Request(prompt)], table), kv)
    tree = Request(nodes, context, parents)
    logits = model.run(batch_of([tree], table), kv)
    for node in range(len(nodes)):
        chain = prompt + [nodes[i] for i in path(tree, node)]
        (expected,) = model.chains([chain], 256)
        assert torch.equal(logits[node], expected[-1]), f"node {node}"
