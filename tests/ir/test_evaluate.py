"""Values of parts of a captured graph at chosen sizes."""

import torch
from torch import Tensor, nn

from flexspec.ir.capture import capture
from flexspec.ir.evaluate import Evaluation, depends_on_content
from flexspec.ir.graph import ModelGraph

_aten = torch.ops.aten


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        near = position_ids[:, :, None] - torch.arange(input_ids.shape[1]) < 100
        return self.embed(input_ids) + near.float().tril(1).sum(-1, keepdim=True)


def masked() -> ModelGraph:
    return capture(Masked(), name="masked")


def test_values_at_a_size() -> None:
    model = masked()
    (mask,) = model.nodes(_aten.tril.default)
    evaluation = Evaluation(model, batch=2, length=5)
    assert evaluation.shape(mask) == [2, 5, 5] and torch.equal(evaluation.value(mask)[1], torch.ones(5, 5).tril(1))
    near = Evaluation(model, batch=1, length=5, constants={100: 2, 1: 0}).value(mask)[0]
    assert torch.equal(near, torch.ones(5, 5).tril(0) * (torch.arange(5)[:, None] - torch.arange(5) < 2))


def test_given_values_are_not_kept() -> None:
    model = masked()
    (mask,), evaluation = model.nodes(_aten.tril.default), Evaluation(model, batch=1, length=3)
    source = mask.args[0]
    assert isinstance(source, torch.fx.Node)
    assert not evaluation.value(mask, {source: torch.zeros(1, 3, 3)}).any() and evaluation.value(mask).any()


def test_sizes_are_no_content() -> None:
    model = masked()
    content = depends_on_content(model, model.token_inputs)
    assert model.nodes(_aten.embedding.default)[0] in content and model.logits in content
    assert not content.intersection(model.nodes(_aten.arange.default, _aten.tril.default, _aten.sym_size.int))
