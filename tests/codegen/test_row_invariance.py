"""A row's logits depend on its own path alone, bit for bit."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from codegen_cases import DTYPES, as_tree, compiled, in_batch, in_chunks, path, storage, text

from flexspec.codegen.batch import Batch, chain_batch
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.cpu.native.build import NativeUnavailable
from flexspec.codegen.cpu.native.library import load_library
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.codegen.row_invariance import probe_row_invariance

CHUNKS = (1, 2, 3, 5, 8, 16, 70, 200, 512)
LENGTHS = (70, 3, 41, 1, 16, 64, 9, 130)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def model_for(target: str, dtype: torch.dtype) -> LoweredModel:
    return compiled("llama", target=target, dtype=dtype, max_pass_tokens=600, max_position_embeddings=4096)[1]


@pytest.fixture(scope="module")
def expected() -> dict[torch.dtype, torch.Tensor]:
    """Logits of a text of 2,048 tokens by the native target, in one chunking on one thread."""
    try:
        load_library()
    except NativeUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")
    return {dtype: in_chunks(model_for("cpu-native", dtype), text(2048), 512) for dtype in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native_chunks(dtype: torch.dtype, threads: int, expected: dict[torch.dtype, torch.Tensor]) -> None:
    model = model_for("cpu-native", dtype)
    assert expected[dtype].std() > 0.1
    for chunk in CHUNKS:
        length = 2048 if chunk >= 200 and threads == 1 else 2 * chunk + 40  # short chunks of all of it would take long
        assert torch.equal(in_chunks(model, text(2048)[:length], chunk), expected[dtype][:length]), f"chunks of {chunk}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_native_short_chunks_after_a_long_text(dtype: torch.dtype, chunk: int, expected: dict[torch.dtype, torch.Tensor]) -> None:
    model = model_for("cpu-native", dtype)
    kv = storage(model, 2048)
    for start in range(0, 2000, 500):
        model.forward(chain_batch(text(2048)[start : start + 500], start=start), kv)
    for start in range(2000, 2048, chunk):
        logits = model.forward(chain_batch(text(2048)[start : start + chunk], start=start), kv)
        assert torch.equal(logits, expected[dtype][start : start + chunk])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_native_batches(dtype: torch.dtype, threads: int, expected: dict[torch.dtype, torch.Tensor]) -> None:
    model = model_for("cpu-native", dtype)
    texts = [text(2048)[:length] for length in LENGTHS]
    for count, chunk in ((1, 16), (3, 7), (8, 70)):
        for got, ids in zip(in_batch(model, texts[:count], chunk, block_size=16), texts[:count], strict=True):
            assert torch.equal(got, expected[dtype][: len(ids)]), f"{count} requests, chunks of {chunk}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("context", [0, 29, 500])
def test_native_trees(dtype: torch.dtype, context: int, expected: dict[torch.dtype, torch.Tensor]) -> None:
    model = model_for("cpu-native", dtype)
    ids = text(2048)
    # The text runs through a tree whose other nodes hold other tokens.
    random = np.random.default_rng(context)
    parents, nodes, on_path, last = [], [], [], -1
    for node in range(60):
        if random.random() < 0.4:
            parents.append(last)
            nodes.append(int(ids[context + len(on_path)]))
            on_path.append(node)
            last = node
        else:
            parents.append(int(random.integers(-1, node)) if node else -1)
            nodes.append(int(random.integers(3, 288)))
    logits = as_tree(model, ids[:context], np.array(nodes), parents)
    assert len(on_path) > 10 and path(parents, last) == on_path
    assert torch.equal(logits[on_path], expected[dtype][context : context + len(on_path)])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_pytorch_chains(dtype: torch.dtype) -> None:
    model = model_for("cpu-torch", dtype)
    ids = text(140)
    whole = in_chunks(model, ids, 140)
    for chunk in (1, 3, 16, 70):
        assert torch.equal(in_chunks(model, ids, chunk), whole), f"chunks of {chunk}"
    texts = [ids[:length] for length in (70, 3, 41)]
    for got, one in zip(in_batch(model, texts, 16, block_size=16), texts, strict=True):
        assert torch.equal(got, whole[: len(one)])


def test_pytorch_trees_are_close() -> None:
    model = model_for("cpu-torch", torch.float32)
    parents = [-1, -1, 0, 1, 2, 3]
    ids = text(40)
    logits = as_tree(model, ids[:30], ids[30:36], parents)
    for node in range(6):
        chain = np.concatenate([ids[:30], ids[30:36][path(parents, node)]])
        torch.testing.assert_close(logits[node], in_chunks(model, chain, 64)[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_probe(dtype: torch.dtype, target: str) -> None:
    probe = probe_row_invariance(model_for(target, dtype))
    assert (probe.chains and "bitwise" in str(probe)) or "chains only" in str(probe)
    assert probe.trees or target == "cpu-torch"
    assert (probe.largest_difference == 0) == (probe.chains and probe.trees)


class Drifting:
    """A model whose logits depend on what shares the pass, or only on the KV slot."""

    vocab_size = 5
    max_positions = None
    feature_size = hidden_size = 0
    tree_walker = None
    level_grower = None
    kv_shape = KVShape(num_layers=1, num_kv_heads=1, head_dim=1, padded_head_dim=1, dtype=torch.float32)

    def __init__(self, *, by_count: float, by_slot: float, max_pass_tokens: int = 64) -> None:
        self.by_count, self.by_slot, self.max_pass_tokens = by_count, by_slot, max_pass_tokens

    def forward(self, batch: Batch, kv: KVStorage, features: torch.Tensor | None = None) -> torch.Tensor:
        assert batch.num_tokens <= self.max_pass_tokens
        base = torch.from_numpy(batch.token_ids + 10 * batch.positions).float()
        off_path = torch.from_numpy(batch.slots - batch.positions).float()
        rows = base + self.by_count * batch.num_tokens + self.by_slot * off_path
        return rows[batch.output_rows.tolist(), None].expand(-1, 5).contiguous()

    def hidden_states(self, rows: Sequence[int]) -> torch.Tensor:
        raise AssertionError("there are none")


@pytest.mark.parametrize("max_pass_tokens", [1, 2, 5, 21, 22, 64])
def test_the_probe_finds_drift_whatever_the_pass_size(max_pass_tokens: int) -> None:
    def probe(**drift: float) -> tuple[bool, bool]:
        result = probe_row_invariance(Drifting(max_pass_tokens=max_pass_tokens, **drift))
        return result.chains, result.trees

    assert probe(by_count=0, by_slot=0) == (True, True)
    if max_pass_tokens > 1:
        assert probe(by_count=0.5, by_slot=0)[0] is False
        assert probe(by_count=0, by_slot=0.5) == (True, False)


def test_the_probe_sees_what_pytorch_does_to_trees_behind_a_text() -> None:
    """Sums over keys are grouped by 64 there, so that a branch that crosses such a border is not summed as a chain is."""
    model = compiled("llama", target="cpu-torch", dtype=torch.float32)[1]
    found = probe_row_invariance(model)
    assert found.chains and not found.trees and found.largest_difference < 1e-4
