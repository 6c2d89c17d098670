"""A position's values are those of the graph, whatever was looked up before."""

import numpy as np
import pytest
import torch

from flexspec.codegen.cpu.position_tables import PositionTables
from flexspec.ir.positions import position_graph
from graph_cases import served


def looked_up(family: str, passes: list[list[int]], *, max_positions: int | None = None) -> list[torch.Tensor]:
    """All values of the last pass, side by side for each of its positions."""
    graph, _ = position_graph(served(family)[1])
    outputs = [torch.zeros(64, value[0].numel()) for value in graph(torch.tensor([0]))]
    tables = PositionTables(graph, max_positions=max_positions, outputs=outputs)
    for positions in passes:
        tables.fill(np.array(positions, dtype=np.int64))
    return [output[: len(passes[-1])].clone() for output in outputs]


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_they_are_the_graphs_own(family: str) -> None:
    wanted = [5, 300, 0, 300, 257]
    found = looked_up(family, [[0], wanted])
    graph, _ = position_graph(served(family)[1])
    for values, expected in zip(found, graph(torch.tensor(wanted)), strict=True):
        torch.testing.assert_close(values, expected.detach().float().reshape(len(wanted), -1), atol=1e-6, rtol=1e-6)


def test_bits_do_not_depend_on_what_was_looked_up_before() -> None:
    for last in ([0, 255, 256, 300], [300]):
        found = [looked_up("llama", [*passes, last]) for passes in ([], [[255]], [[256], [3]], [[299, 1]])]
        assert all(torch.equal(one, other) for values in found for one, other in zip(values, found[0], strict=True))


def test_learned_positions_end_with_their_table() -> None:
    graph, _ = position_graph(served("gpt2")[1])
    limit = max(len(buffer) for buffer in graph.buffers())
    last = limit - 1
    (values,) = looked_up("gpt2", [[last]], max_positions=limit)
    assert torch.equal(values, graph(torch.tensor([last]))[0].detach().float())


def test_a_model_without_such_values_looks_up_nothing() -> None:
    tables = PositionTables(torch.fx.GraphModule({}, torch.fx.Graph()), max_positions=4, outputs=[])
    tables.fill(np.array([100]))
