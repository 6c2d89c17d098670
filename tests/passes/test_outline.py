import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import ATTENTION, TREE_ATTENTION
from flexspec.passes.outline import outline
from flexspec.passes.output_rows import output_rows
from flexspec.passes.tree_attention import lower_attention
from graph_cases import TokenModule, assert_same, flat_graph, graph_logits, prompt, reference_logits, served


class Layers(TokenModule):
    """One attention layer for each of `windows`."""

    windows: tuple[int | None, ...] = (None, None, None)

    def layer(self, x: Tensor, position_ids: Tensor, window: int | None) -> Tensor:
        heads = F.layer_norm(x, (8,), self.weight).view(*position_ids.shape, 2, 4)
        x = x + ATTENTION(heads, heads, heads, 0.5, window, None, None).reshape(*position_ids.shape, 8)
        return x + self.extra(F.layer_norm(x, (8,), self.weight))

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        for window in self.windows:
            x = self.layer(x, position_ids, window)
        return x


class Alternating(Layers):
    windows = (None, 2, None, 2, 2)


class Skipping(Layers):
    """The second layer reads the embedding again: two values are alive between the layers."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.layer(self.layer(x, position_ids, None) + self.weight, position_ids, None) + x


def lowered(module: TokenModule) -> ModelGraph:
    model = flat_graph(module)
    lower_attention(model)
    output_rows(model)
    return model


@pytest.mark.parametrize(("module", "kinds"), [(Layers(), [0, 0, 0]), (Alternating(), [0, 1, 0, 1, 1])], ids=["one kind", "two kinds"])
def test_layers_become_calls_of_their_kind(module: Layers, kinds: list[int]) -> None:
    model = lowered(module)
    assert outline(model) == (len(kinds), len(kinds))
    calls = model.graph.find_nodes(op="call_module")
    assert [call.target for call in calls] == [f"block_{kind}" for kind in kinds]
    assert [call.args[-1] for call in calls] == list(range(len(kinds)))
    assert len(list(model.module.children())) == len(set(kinds))
    assert not model.nodes(TREE_ATTENTION)
    assert_same(model, module)


def test_a_single_layer() -> None:
    module = Layers()
    module.windows = (3,)
    model = lowered(module)
    assert outline(model) == (1, 1)
    assert_same(model, module)


def test_layers_that_cannot_be_cut_stay_and_are_counted() -> None:
    module = Skipping()
    model = lowered(module)
    found, expected = outline(model)
    assert found < expected == 2
    assert_same(model, module)


def test_positions_and_weights_are_arguments_of_the_block() -> None:
    module, model = served("llama", num_hidden_layers=3)
    first, second, third = (call.args for call in model.graph.find_nodes(op="call_module"))
    different = [i for i, args in enumerate(zip(first, second, third, strict=True)) if len(set(args)) == 3]
    weights = [first[i] for i in different if isinstance(first[i], torch.fx.Node) and first[i].op == "get_attr"]
    assert len(weights) == 6  # fused QKV, output, fused gate and up, down, two norms
    assert len(different) == 8  # and the residual stream, and the layer
    torch.testing.assert_close(graph_logits(model, prompt(7)), reference_logits(module, prompt(7)), atol=2e-5, rtol=1e-5)
