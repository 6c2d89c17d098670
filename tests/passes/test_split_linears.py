import torch
from torch import Tensor, nn

from flexspec.passes.attention_pattern import recognise_attention
from flexspec.passes.fuse_linears import fuse_linears
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import FLAT
from flexspec.passes.split_linears import split_linears
from graph_cases import captured, graph_logits, graph_of, prompt, reference_logits

_aten = torch.ops.aten

WITHOUT_ATTENTION = [one for one in FLAT if one is not recognise_attention]


class _Sliced(nn.Module):
    """One linear of which three parts are used."""

    def __init__(self, *, also_whole: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.wide = nn.Linear(6, 12)
        self.head = nn.Linear(4, 11)
        self.also_whole = also_whole

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        wide = self.wide(self.embedding(input_ids + 0 * position_ids))
        result: Tensor = self.head(torch.sigmoid(wide[..., :4]) * wide[..., 4:8] + wide[..., 8:])
        return result + wide.mean(-1, keepdim=True) if self.also_whole else result


def test_gpt2_gets_queries_keys_and_values_of_their_own() -> None:
    module, model = captured("gpt2")
    ids = prompt(9)
    run_passes(model, FLAT[:-1])
    assert len(model.nodes(_aten.split.Tensor)) == 2
    assert split_linears(model) == 2
    assert not model.nodes(_aten.split.Tensor)
    linears = model.nodes(_aten.linear.default)
    assert len(linears) == 2 * 6 + 1
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids))
    weights = {module.transformer.h[layer].attn.c_attn.weight.untyped_storage().data_ptr() for layer in range(2)}
    parts = [model.parameter(node.args[1]) for node in linears]  # type: ignore[arg-type]
    assert sum(part.untyped_storage().data_ptr() in weights for part in parts) == 6, "the parts are views"
    assert fuse_linears(model)[0] == 6
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids))


def test_slices_are_parts_too() -> None:
    module = _Sliced()
    model = graph_of(module)
    run_passes(model, WITHOUT_ATTENTION)
    assert [node.meta["val"].shape[-1] for node in model.nodes(_aten.linear.default)] == [4, 4, 4, 11]
    torch.testing.assert_close(graph_logits(model, torch.arange(5)), reference_logits(module, torch.arange(5)))


def test_a_result_with_other_uses_stays_whole() -> None:
    model = graph_of(_Sliced(also_whole=True))
    run_passes(model, WITHOUT_ATTENTION)
    assert [node.meta["val"].shape[-1] for node in model.nodes(_aten.linear.default)] == [12, 11]
