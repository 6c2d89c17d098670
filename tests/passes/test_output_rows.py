import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ATTENTION
from flexspec.passes.output_rows import output_rows
from flexspec.passes.pipeline import RECOGNITION
from graph_cases import TokenModule, captured, flat_graph, reference_logits

GATHER = torch.ops.aten.index_select.default


class Block(TokenModule):
    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4)
        x = x + ATTENTION(heads, heads, heads, 0.5, None, None, None).reshape(*position_ids.shape, 8)
        return self.after(x, position_ids)

    def after(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return F.layer_norm(self.extra(F.layer_norm(x, (8,), self.weight)), (8,), self.weight)


class PositionsAfter(Block):
    def after(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return x * position_ids[..., None]


class UsedTwice(Block):
    def after(self, x: Tensor, position_ids: Tensor) -> Tensor:
        y = F.layer_norm(x, (8,), self.weight)
        return y + self.extra(y)


def rows_of(model: ModelGraph, ids: Tensor, rows: list[int]) -> Tensor:
    inputs = {"token_ids": ids, "position_ids": torch.arange(len(ids)), "output_rows": torch.tensor(rows, dtype=torch.int32)}
    with torch.no_grad():
        return model.module(*(inputs[str(node.target)] for node in model.graph.find_nodes(op="placeholder")))


def check(module: TokenModule, rows: list[int]) -> ModelGraph:
    model = flat_graph(module)
    assert output_rows(model) == (1, 1)
    ids = torch.arange(6)
    torch.testing.assert_close(rows_of(model, ids, rows), reference_logits(module, ids)[rows], atol=1e-5, rtol=1e-5)
    return model


def test_the_gather_climbs_over_norms_and_linears() -> None:
    for rows in ([5], [0, 3, 3], []):
        model = check(Block(), rows)
    (gather,) = model.nodes(GATHER)
    assert gather.args[0].target == torch.ops.aten.add.Tensor
    assert len([node for node in model.graph.nodes if node.op == "call_function" and gather in node.all_input_nodes]) == 1
    assert fake(model.graph.output_node().args[0]).shape[0] == fake(gather).shape[0]


def test_it_stops_where_other_rows_are_needed() -> None:
    (gather,) = check(PositionsAfter(), [4, 1]).nodes(GATHER)
    assert gather.args[0].target == torch.ops.aten.mul.Tensor
    (gather,) = check(UsedTwice(), [4, 1]).nodes(GATHER)
    assert gather.args[0].target == torch.ops.aten.add.Tensor


def test_a_model_without_layers_after_attention() -> None:
    class Bare(Block):
        def after(self, x: Tensor, position_ids: Tensor) -> Tensor:
            return x

    check(Bare(), [2])


class TwoHeads(Block):
    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.middle(self.table(input_ids), position_ids)
        return self.head(x) + F.linear(x, self.table.weight)


class Capped(Block):
    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return torch.tanh(super().forward(input_ids, position_ids) / 3.0) * 3.0


def test_logits_of_other_forms() -> None:
    (gather,) = check(TwoHeads(), [3, 0]).nodes(GATHER)
    assert gather.args[0].target == torch.ops.aten.add.Tensor and gather.users.keys() == {gather.graph.output_node()}
    (gather,) = check(Capped(), [3, 0]).nodes(GATHER)
    (norm,) = gather.users
    assert norm.target == torch.ops.aten.layer_norm.default


def test_only_wanted_rows_reach_the_head_of_opt() -> None:
    from flexspec.passes.manager import run_passes

    model = captured("opt")[1]
    run_passes(model, (*RECOGNITION, output_rows))
    (gather,) = model.nodes(GATHER)
    (norm,) = gather.users
    assert norm.target == torch.ops.aten.layer_norm.default
