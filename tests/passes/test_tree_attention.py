import pytest
import torch
from torch import Tensor, nn

from flexspec.errors import UsageError
from flexspec.ir.graph import fake
from flexspec.ir.ops import ATTENTION, ROPE, TREE_ATTENTION
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION
from flexspec.passes.tree_attention import BATCH_INPUTS, CACHE_INPUTS, lower_attention
from graph_cases import TokenModule, assert_same, captured, flat_graph, graph_logits, prompt, reference_logits


def arguments(node: torch.fx.Node) -> dict[str, object]:
    return dict(zip((argument.name for argument in TREE_ATTENTION._schema.arguments), node.args, strict=True))


def test_cache_and_batch_become_inputs() -> None:
    module, model = captured("mistral")
    run_passes(model, RECOGNITION)
    assert lower_attention(model) == (2, 2)
    assert not model.nodes(ATTENTION, ROPE)
    names = [str(node.target) for node in model.graph.find_nodes(op="placeholder")]
    assert names == ["token_ids", "position_ids", *CACHE_INPUTS, *BATCH_INPUTS, "block_size"]
    for layer, node in enumerate(model.nodes(TREE_ATTENTION)):
        given = arguments(node)
        assert (given["layer"], given["window"], given["scale"]) == (layer, 8, 8**-0.5)
        assert given["cos"] is not None and given["sin"] is not None
        assert all(given[name] is model.placeholder(name) for name in (*CACHE_INPUTS, *BATCH_INPUTS))
        assert given["positions"] is model.placeholder("position_ids")
    assert list(fake(model.placeholder("keys")).shape) == [2, 64, 2, 8]
    torch.testing.assert_close(graph_logits(model, prompt(13)), reference_logits(module, prompt(13)), atol=2e-5, rtol=1e-5)


class Attention(TokenModule):
    """Two attentions; the second has `kv_heads` KV heads and values of `value_dim`."""

    def __init__(self, kv_heads: int, value_dim: int = 4) -> None:
        super().__init__()
        self.kv_heads, self.value_dim = kv_heads, value_dim
        self.keys, self.values = nn.Linear(8, 4 * kv_heads), nn.Linear(8, value_dim * kv_heads)
        self.out = nn.Linear(2 * value_dim, 8)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        shape = position_ids.shape
        q = x.view(*shape, 2, 4)
        x = ATTENTION(q, q, q, 0.5, None, None, None).reshape(*shape, 8)
        k, v = self.keys(x).view(*shape, self.kv_heads, 4), self.values(x).view(*shape, self.kv_heads, self.value_dim)
        return self.out(ATTENTION(x.view(*shape, 2, 4), k, v, 0.5, 3, None, None).reshape(*shape, -1))


def test_without_rotary_embedding() -> None:
    module = Attention(2)
    model = flat_graph(module)
    assert lower_attention(model) == (2, 2)
    assert [(arguments(node)["cos"], arguments(node)["window"]) for node in model.nodes(TREE_ATTENTION)] == [(None, None), (None, 3)]
    assert_same(model, module)


@pytest.mark.parametrize("module", [Attention(1), Attention(2, value_dim=3)], ids=["KV heads", "value size"])
def test_unlike_layers_are_refused(module: TokenModule) -> None:
    with pytest.raises(UsageError, match=r"layers with unlike KV heads or head sizes .* are not supported"):
        lower_attention(flat_graph(module))


def test_fewer_attentions_than_layers_is_reported() -> None:
    model = flat_graph(Attention(2))
    model.facts = type(model.facts)(name="mine", num_layers=3, vocab_size=11)
    with pytest.raises(UsageError, match="model mine: pass lower_attention matched 2 of 3 places"):
        run_passes(model, (lower_attention,))
