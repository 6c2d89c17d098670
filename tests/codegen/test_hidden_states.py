"""Hidden states of compiled models against Hugging Face's, and models that take features against PyTorch."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from codegen_cases import DTYPES, as_tree, compile_graph, compiled, in_batch, in_chunks, path, storage, text
from torch import Tensor
from transformers import PreTrainedModel

from flexspec.api.lower import Compilation, lower, run_pipelines
from flexspec.codegen.batch import Batch, Int64, chain_batch
from flexspec.codegen.compiled_model import LoweredModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.row_invariance import probe_row_invariance
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.models.loaded_model import describe
from graph_cases import Head, copied
from tiny_models import tiny

STATES = ("model.layers.0", "model.norm", "model.layers.1.mlp", "model.layers.1")
PARENTS = (-1, -1, 0, 1, 2, 0, 4, 4)


class Seen:
    """A compiled model whose rows are its logits with the hidden states beside them; features, if any, go by token and position."""

    def __init__(self, model: LoweredModel) -> None:
        self.model = model
        self.kv_shape = model.kv_shape

    def forward(self, batch: Batch, kv: KVStorage) -> Tensor:
        given = features_of(batch.token_ids, batch.positions) if self.model.feature_size else None
        logits = self.model.forward(batch, kv, given)
        return torch.cat([logits, self.model.hidden_states(batch.output_rows)], dim=1)


def features_of(ids: Int64, positions: Int64) -> Tensor:
    """[tokens, 12]"""
    table = torch.randn((288, 12), generator=torch.Generator().manual_seed(5))
    return table[torch.from_numpy(ids)] + torch.sin(torch.from_numpy(positions))[:, None].float()


@cache
def served_llama() -> tuple[PreTrainedModel, ModelGraph]:
    module = tiny("llama")
    model = capture(module, name="llama", hidden_states=STATES)
    run_pipelines(model)
    return module, model


@cache
def llama(target: str, dtype: torch.dtype) -> tuple[PreTrainedModel, LoweredModel]:
    module, model = served_llama()
    return module, compile_graph(copied(model), target=target, dtype=dtype)


def hugging_face(module: PreTrainedModel, ids: Int64) -> Tensor:
    """[tokens, vocab + sizes of STATES]"""
    tokens = torch.from_numpy(ids)[None]
    outputs = []
    mlp = module.model.layers[1].mlp.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    last = module.model.layers[1].register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
    with torch.no_grad():
        result = module(tokens, output_hidden_states=True)
    mlp.remove()
    last.remove()
    states = result.hidden_states  # the embedding, the first layer, and the last one after the final norm
    assert len(states) == 3
    return torch.cat([result.logits, states[1], states[2], *outputs], dim=-1)[0]


def eager_head(module: Head, ids: Int64) -> Tensor:
    positions = np.arange(len(ids))
    states: list[Tensor] = []
    handle = module.layer.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    with torch.no_grad():
        logits = module(torch.from_numpy(ids)[None], torch.from_numpy(positions)[None], features_of(ids, positions)[None])
    handle.remove()
    return torch.cat([logits, *states], dim=-1)[0]


def check_everywhere(model: Seen, expected: Callable[[Int64], Tensor]) -> None:
    """In chains, in batches and in a tree, for all and for some of a pass's tokens."""
    ids, close = text(19), {"atol": 5e-5, "rtol": 1e-5}
    torch.testing.assert_close(in_chunks(model, ids, 7), expected(ids), **close)
    texts = [text(length, length) for length in (11, 3, 7)]
    for got, one in zip(in_batch(model, texts, 4, block_size=8), texts, strict=True):
        torch.testing.assert_close(got, expected(one), **close)
    nodes = text(8, 2)
    got = as_tree(model, ids, nodes, PARENTS)
    for node in range(8):
        torch.testing.assert_close(got[node], expected(np.concatenate([ids, nodes[path(PARENTS, node)]]))[-1], **close)


def test_they_equal_hugging_faces(target: str) -> None:
    module, model = llama(target, torch.float32)
    assert model.hidden_size == 4 * 32 and model.feature_size == 0
    check_everywhere(Seen(model), lambda ids: hugging_face(module, ids))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_asking_for_them_changes_no_logits(dtype: torch.dtype, target: str) -> None:
    plain, model = compiled("llama", target=target, dtype=dtype)[1], llama(target, dtype)[1]
    assert plain.hidden_size == 0 < model.hidden_size
    ids, nodes = text(23), text(8, 3)
    assert torch.equal(in_chunks(model, ids, 9), in_chunks(plain, ids, 9))
    assert torch.equal(as_tree(model, ids, nodes, PARENTS), as_tree(plain, ids, nodes, PARENTS))


def test_any_tokens_of_the_last_pass(target: str) -> None:
    model = llama(target, torch.bfloat16)[1]
    kv, ids = storage(model, 20), text(20)
    model.forward(chain_batch(ids[:12]), kv)
    model.forward(chain_batch(ids[12:], start=12, output_rows=np.array([7], dtype=np.int32)), kv)
    all_rows = model.hidden_states(range(8))
    assert all_rows.shape == (8, 128) and all_rows.dtype == torch.float32 and not all_rows.is_inference()
    some = model.hidden_states(np.array([5, 0, 5], dtype=np.int32))
    assert torch.equal(some, all_rows[[5, 0, 5]]) and model.hidden_states([]).shape == (0, 128)
    with pytest.raises((IndexError, RuntimeError)):
        model.hidden_states([8])
    before = some.clone()
    model.forward(chain_batch(ids[:3]), kv)
    assert torch.equal(some, before), "a copy"


@cache
def served_head() -> tuple[Head, ModelGraph]:
    module = Head().eval()
    model = capture(module, name="head", hidden_states=["layer"], feature_size=12)
    run_pipelines(model)
    return module, model


@cache
def head(target: str, dtype: torch.dtype) -> tuple[Head, LoweredModel]:
    module, model = served_head()
    return module, compile_graph(copied(model), target=target, dtype=dtype)


def test_a_head_equals_pytorch(target: str) -> None:
    module, model = head(target, torch.float32)
    assert (model.vocab_size, model.feature_size, model.hidden_size) == (288, 12, 16)
    check_everywhere(Seen(model), lambda ids: eager_head(module, ids))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_row_invariance_of_a_head(dtype: torch.dtype, target: str) -> None:
    model = head(target, dtype)[1]
    probe = probe_row_invariance(model)
    assert probe.chains and (probe.trees or target == "cpu-torch")
    if target == "cpu-native":
        check_bitwise(Seen(model))


def check_bitwise(model: Seen) -> None:
    ids = text(40)
    whole = in_chunks(model, ids, 40)
    for chunk in (1, 3, 16):
        assert torch.equal(in_chunks(model, ids, chunk), whole)
    parents = [-1, -1, *range(38)]  # two chains, node by node
    nodes = np.stack([ids[20:], ids[:20]], axis=1).reshape(-1)
    assert torch.equal(as_tree(model, ids[:20], nodes, parents)[::2], whole[20:])


def test_features_must_come_where_they_are_taken_and_nowhere_else(target: str) -> None:
    model = head(target, torch.float32)[1]
    batch, kv = chain_batch(text(3)), storage(model, 8)
    for wrong in (None, torch.zeros(2, 12), torch.zeros(3, 11), torch.zeros(3, 12, dtype=torch.float64)):
        with pytest.raises(AssertionError):
            model.forward(batch, kv, wrong)
    plain = compiled("llama", target=target, dtype=torch.float32)[1]
    with pytest.raises(AssertionError):
        plain.forward(batch, storage(plain, 8), torch.zeros(3, 12))
    with pytest.raises(AssertionError, match="no hidden states were asked for"):
        plain.hidden_states([0])


def lowered_head(states: Sequence[str]) -> Compilation:
    loaded = describe("head", Head().eval(), None, 288)
    options = {"dtype": torch.bfloat16, "buckets": (1, 16), "store": WeightStore()}
    return lower(loaded, **options, hidden_states=states, feature_size=12)


def test_lowering_feeds_features_to_its_own_passes() -> None:
    done = lowered_head(["layer", "table"])
    assert (done.model.hidden_size, done.model.feature_size) == (32, 12) and done.row_invariance.chains


@pytest.mark.parametrize("states", [["layers"], ["layer", "table.weight"]])
def test_wrong_names_are_refused(states: Sequence[str]) -> None:
    with pytest.raises(UsageError, match=f"model head: hidden state '{states[-1]}' is no submodule of Head; some that it has: '"):
        lowered_head(states)
