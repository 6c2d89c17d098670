import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import ATTENTION
from flexspec.passes.blocks import Blocks, find_blocks, fingerprint
from flexspec.passes.flatten_tokens import flatten_tokens
from flexspec.passes.manager import run_passes
from flexspec.passes.outline import outline
from flexspec.passes.output_rows import output_rows
from flexspec.passes.pipeline import FLAT, RECOGNITION
from flexspec.passes.tree_attention import lower_attention
from graph_cases import TokenModule, captured, copied, flat_graph
from tiny_models import Family


class Layers(TokenModule):
    """One attention layer for each of `windows`."""

    windows: tuple[int | None, ...] = (None, 2, None, 2, 2)

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        for window in self.windows:
            heads = F.layer_norm(x, (8,), self.weight).view(*position_ids.shape, 2, 4)
            x = x + ATTENTION(heads, heads, heads, 0.5, window, None, None).reshape(*position_ids.shape, 8)
            x = x + self.extra(F.layer_norm(x, (8,), self.weight))
        return x


class Skipping(TokenModule):
    """The second layer reads the embedding again: two values are alive between the layers."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4)
        for _ in range(2):
            heads = ATTENTION(heads, heads, heads, 0.5, None, None, None) + x.view(*position_ids.shape, 2, 4)
        return heads.reshape(*position_ids.shape, 8)


def flat(family: Family) -> ModelGraph:
    _, model = captured(family)
    run_passes(model, FLAT)
    return model


def hand_written(*windows: int | None, wide: int = 0, seed: int = 0) -> Blocks:
    module = Layers()
    module.windows = windows
    if wide:
        module.head = torch.nn.Linear(8, wide)
    torch.nn.init.normal_(module.weight, generator=torch.Generator().manual_seed(seed))
    return find_blocks(flat_graph(module))


def names(blocks: Blocks) -> list[list[str]]:
    return [[node.name for node in nodes] for nodes in (blocks.prologue, *(layer.nodes for layer in blocks.layers), blocks.epilogue)]


@pytest.mark.parametrize(("family", "sizes"), [("llama", (1, 19, 19, 2)), ("gpt2", (2, 16, 16, 2))])
def test_a_model_is_embedding_layers_and_head(family: Family, sizes: tuple[int, ...]) -> None:
    blocks = find_blocks(flat(family))
    assert tuple(map(len, names(blocks))) == sizes
    assert [layer.kind for layer in blocks.layers] == ["block_0", "block_0"]
    assert all(layer.nodes[-1].target == torch.ops.aten.add.Tensor for layer in blocks.layers)


def test_a_single_layer_ends_before_the_head() -> None:
    blocks, several = hand_written(3), hand_written(3, 3)
    assert len(blocks.layers[0].nodes) == len(several.layers[0].nodes) == len(several.layers[1].nodes)
    assert [node.target for node in blocks.epilogue] == [torch.ops.aten.linear.default]


def test_kinds_are_those_of_the_outline() -> None:
    model = flat_graph(Layers())
    assert [layer.kind for layer in find_blocks(model).layers] == [f"block_{kind}" for kind in (0, 1, 0, 1, 1)]
    outlined = copied(model)
    lower_attention(outlined)
    output_rows(outlined)
    outline(outlined)
    assert [call.target for call in outlined.graph.find_nodes(op="call_module")] == [layer.kind for layer in find_blocks(model).layers]


def test_hidden_states_change_no_block() -> None:
    module = Layers()
    model = capture(module, name="hand-written", hidden_states=("table",))
    run_passes(model, RECOGNITION[: RECOGNITION.index(flatten_tokens) + 1])
    assert names(find_blocks(model)) == names(find_blocks(flat_graph(module)))


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model hand-written can't be divided over devices: its 2 attentions .*; give pp=1 and tp=1"):
        find_blocks(flat_graph(Skipping()))


def test_a_fingerprint_is_of_the_structure() -> None:
    two, three = hand_written(None, None), hand_written(None, None, None)
    assert fingerprint(two) == fingerprint(hand_written(None, None, seed=1))
    assert fingerprint(two, ["block_0"] * 3) == fingerprint(three)
    others = [two, three, hand_written(None, None, wide=12), hand_written(None, 2)]
    assert len({fingerprint(other) for other in others}) == len(others)
