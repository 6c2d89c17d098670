"""The part of a graph that depends on positions alone."""

import pytest
import torch

from flexspec.ir.positions import position_graph, position_values
from graph_cases import captured, served
from tiny_models import FAMILIES, Family


@pytest.mark.parametrize("family", FAMILIES)
def test_values_are_tables_or_embeddings(family: Family) -> None:
    module, model = served(family)
    prologue, frontier = position_graph(model)
    positions = torch.tensor([0, 5, 5, 300])
    results = prologue(positions)
    assert len(results) == len(frontier)
    if family in ("llama", "qwen2", "qwen3", "mistral"):
        with torch.no_grad():
            cos, sin = module.model.rotary_emb(torch.zeros(1), positions[None])
        expected = (cos[0], sin[0])
    else:
        table, offset = (module.model.decoder.embed_positions.weight, 2) if family == "opt" else (module.transformer.wpe.weight, 0)
        expected = (table[positions + offset].detach(),)
    for got, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-6)


def test_values_read_elsewhere_are_the_frontier() -> None:
    model = served("llama")[1]
    computed, frontier = position_values(model)
    assert set(frontier) < set(computed)
    assert [node.target for node in frontier] == [torch.ops.aten.cos.default, torch.ops.aten.sin.default]


def test_token_dependent_values_are_left_out() -> None:
    model = captured("gpt2")[1]
    computed, _ = position_values(model)
    (table,) = [node for node in computed if node.target == torch.ops.aten.embedding.default]
    assert table.args[1] is model.placeholder("position_ids") or model.placeholder("position_ids") in table.all_input_nodes
