"""Batch and sequence become one dim; whatever could work across tokens is refused by name."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from flexspec.errors import UsageError
from flexspec.ir.cost import count_operators
from flexspec.ir.graph import fake
from flexspec.ir.ops import ATTENTION
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.flatten_tokens import flatten_tokens
from graph_cases import TokenModule, assert_same, graph_of


class Middle(TokenModule):
    def __init__(self, function: Callable[[TokenModule, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        return self.function(self, x, position_ids)


def heads_in_front(self: TokenModule, x: Tensor, positions: Tensor) -> Tensor:
    batch, length = positions.shape
    q = x.view(batch, length, 2, 4).transpose(1, 2)  # [batch, heads, tokens, 4]
    scale = self.weight[:2].view(1, 2, 1, 1)
    q = torch.cat([-q[..., 2:], q[..., :2]], dim=-1) * scale + self.weight[:2].view(2, 1, 1) + self.weight[4:]
    q = q / q.pow(2).mean(-1, keepdim=True).sqrt()
    out = ATTENTION(*[q.transpose(1, 2)] * 3, 1.0, None, None, None)
    return out.reshape(batch, length, -1)


GOOD: dict[str, Callable[[TokenModule, Tensor, Tensor], Tensor]] = {
    "heads in front": heads_in_front,
    "rows of batch times length": lambda m, x, p: torch.addmm(m.weight, x.view(-1, 8), m.extra.weight).view(x.size(0), x.size(1), 8),
    "softmax over features": lambda m, x, p: x.softmax(-1),
    "split and cat": lambda m, x, p: torch.cat([*x.split(3, dim=2)][::-1], dim=2),
    "flatten and unflatten": lambda m, x, p: x.unflatten(-1, (2, 4)).flatten(2) + x.flatten(0, 1).unflatten(0, p.shape),
    "chunk": lambda m, x, p: torch.cat(x.chunk(2, -1)[::-1], -1),
    "select": lambda m, x, p: x * x.select(2, 3).unsqueeze(-1),
    "position": lambda m, x, p: x * p.unsqueeze(-1),
    "scalar constant": lambda m, x, p: x * m.weight[0],
    "norm": lambda m, x, p: nn.functional.layer_norm(x, (8,), m.weight),
    "where": lambda m, x, p: torch.where(x > 0, x, m.weight),
    "tokens first": lambda m, x, p: (m.extra(x.transpose(0, 1)) + m.weight).transpose(0, 1),
    "tokens first, in rows": lambda m, x, p: m.extra(x.transpose(0, 1).flatten(0, 1)).unflatten(0, [*p.T.shape]).transpose(0, 1),
    "stacked in front": lambda m, x, p: (
        x.view(*p.shape, 2, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)[1].transpose(1, 2).repeat(1, 1, 2, 1).flatten(2)
    ),
    "a new dim": lambda m, x, p: x[None].expand(3, -1, -1, -1).sum(0),
    "length of features": lambda m, x, p: x / (1 + x.std(-1, keepdim=True) + x.norm(dim=-1, keepdim=True)),
    "features turned round": lambda m, x, p: x.flip(-1) + x.roll(3, 2),
    "dims of one": lambda m, x, p: x[:, :, None].squeeze(2) * x.unsqueeze(1).squeeze(1),
}

BAD: dict[str, Callable[[TokenModule, Tensor, Tensor], Tensor]] = {
    "mean over tokens": lambda m, x, p: x + x.mean(1, keepdim=True),
    "mean over everything": lambda m, x, p: x + x.mean(),
    "softmax over tokens": lambda m, x, p: x.softmax(1),
    "sum along tokens": lambda m, x, p: x.cumsum(1),
    "shifted": lambda m, x, p: x.roll(1, 1),
    "turned round": lambda m, x, p: x.flip(1),
    "padded": lambda m, x, p: nn.functional.pad(x, (0, 0, 1, 0))[:, :-1],
    "rows in another order": lambda m, x, p: x.transpose(0, 1).flatten(0, 1).view(x.shape),
    "rows of both orders": lambda m, x, p: (x.transpose(0, 1).flatten(0, 1) + x.flatten(0, 1)).view(x.shape),
    "length of the text": lambda m, x, p: x / x.norm(dim=1, keepdim=True),
    "first token": lambda m, x, p: x + x[:, :1],
    "tokens times tokens": lambda m, x, p: torch.matmul(x, x.transpose(1, 2)).softmax(-1) @ x,
    "length": lambda m, x, p: x * x.shape[1],
    "table of the sequence": lambda m, x, p: x + m.table(torch.arange(x.shape[1])),
    "largest over tokens": lambda m, x, p: x + x.amax(1, keepdim=True),
    "largest of everything": lambda m, x, p: x + x.max(),
    "longest of all": lambda m, x, p: x * torch.where(p.max() > 100, 2.0, 1.0),
    "sorted": lambda m, x, p: x.sort(1).values,
    "tokens as features": lambda m, x, p: x.transpose(1, 2).reshape(x.shape[0], x.shape[1], 8),
    "convolution": lambda m, x, p: nn.functional.conv1d(x.transpose(1, 2), m.weight[:3].expand(8, 1, 3), padding=1, groups=8).transpose(
        1, 2
    ),
}


@pytest.mark.parametrize("name", list(GOOD))
def test_token_wise_operators(name: str) -> None:
    module = Middle(GOOD[name])
    model = graph_of(module)
    canonicalize(model)
    flatten_tokens(model)
    assert fake(model.graph.output_node().args[0]).dim() == 2
    assert not any(name.startswith(("aten.transpose", "aten.permute")) for name in count_operators(model.module))
    assert_same(model, module)
    assert_same(model, module, length=1)


@pytest.mark.parametrize("name", list(BAD))
def test_operators_across_tokens_are_refused(name: str) -> None:
    model = graph_of(Middle(BAD[name]))
    canonicalize(model)
    with pytest.raises(UsageError, match=r"^model hand-written: operator \w+ \(\S+\) can't run on flat tokens: [^\n]+$"):
        flatten_tokens(model)
