import pytest
import torch
from torch import Tensor

from flexspec.ir.cost import count_operators
from flexspec.ir.ops import ATTENTION, ROPE
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import SERVING
from flexspec.passes.rope import recognise_rope
from flexspec.passes.share_position_values import share_position_values
from graph_cases import TokenModule, assert_same, flat_graph


class Rotary(TokenModule):
    """Two heads of 4, as Hugging Face's models rotate them."""

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * self.weight[:2].detach().clone()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., 2:], x[..., :2]], dim=-1) * sin

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4).transpose(1, 2)
        other = self.extra(x).view(*position_ids.shape, 2, 4).transpose(1, 2)
        cos, sin = self.tables(position_ids)
        q, k = (self.rotate(one, cos, sin).transpose(1, 2) for one in (heads, other))
        return ATTENTION(q, k, other.transpose(1, 2), 0.5, None, None, None).reshape(*position_ids.shape, 8)


class OtherOrder(Rotary):
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x[..., :2], x[..., 2:4]
        return sin * torch.cat((-second, first), dim=3) + cos * x


@pytest.mark.parametrize("module", [Rotary(), OtherOrder()], ids=lambda module: type(module).__name__)
def test_half_rotation(module: TokenModule) -> None:
    model = flat_graph(module)
    assert recognise_rope(model) == (2, 2)
    counts = count_operators(model.module)
    assert counts["flexspec.rope.default"] == 2 and "aten.neg.default" not in counts
    assert_same(model, module)


class WrongHalf(Rotary):
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat([x[..., 2:], -x[..., :2]], dim=-1) * sin


class Unequal(Rotary):
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.cat([-x[..., 1:], x[..., :1]], dim=-1) * sin


class Interleaved(Rotary):
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        even, odd = x[..., 0:3:2], x[..., 1:4:2]
        return x * cos + torch.cat([-odd, even], dim=-1) * sin


@pytest.mark.parametrize("module", [WrongHalf(), Unequal(), Interleaved()], ids=lambda module: type(module).__name__)
def test_near_misses_are_left_and_reported(module: TokenModule) -> None:
    model = flat_graph(module)
    run_passes(model, (recognise_rope,))
    assert (model.notes[-1].matches, model.notes[-1].expected) == (0, 2)
    assert not model.nodes(ROPE)
    assert_same(model, module)


class Partial(Rotary):
    """Only the first half of each head is rotated."""

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * self.weight[:1].detach().clone()
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = x[..., :2]
        turned = turned * cos + torch.cat([-turned[..., 1:], turned[..., :1]], dim=-1) * sin
        return torch.cat([turned, x[..., 2:]], dim=-1)


class PairsOf(Rotary):
    """Pairs are adjacent dims, and the tables are written once for each of them, as in Cohere's models."""

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None] * self.weight[:2].detach().clone()).repeat_interleave(2, dim=-1)
        return (2.0 * angles.cos()).unsqueeze(1), angles.sin().unsqueeze(1)

    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2) * sin


@pytest.mark.parametrize(("module", "interleaved"), [(Partial(), False), (PairsOf(), True)], ids=["partial", "pairs"])
def test_other_forms_run_inside_attention(module: TokenModule, interleaved: bool) -> None:
    model = flat_graph(module)
    assert recognise_rope(model) == (2, 2)
    assert [node.args[3] for node in model.nodes(ROPE)] == [interleaved] * 2
    assert_same(model, module)
    assert share_position_values(model) == (4 if interleaved else 0)
    with torch.no_grad():
        run_passes(model, SERVING)
    assert not model.nodes(ROPE)
    assert_same(model, module)


class UnequalPairs(PairsOf):
    """Columns of a pair differ, so it is no rotation."""

    def tables(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * self.weight[:4].detach().clone()
        return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def test_adjacent_dims_with_unlike_angles_are_left() -> None:
    model = flat_graph(UnequalPairs())
    assert recognise_rope(model) == (0, 2)


class OfQueriesAlone(Rotary):
    """Attention turns queries and keys alike, or neither."""

    def middle(self, x: Tensor, position_ids: Tensor) -> Tensor:
        heads = x.view(*position_ids.shape, 2, 4).transpose(1, 2)
        q = self.rotate(heads, *self.tables(position_ids)).transpose(1, 2)
        k = heads.transpose(1, 2)
        return ATTENTION(q, k, k, 0.5, None, None, None).reshape(*position_ids.shape, 8)


def test_rotation_of_queries_alone_is_written_out_again() -> None:
    module = OfQueriesAlone()
    model = flat_graph(module)
    assert recognise_rope(model)[0] == 1
    with torch.no_grad():
        run_passes(model, SERVING)
    assert not model.nodes(ROPE)
    assert_same(model, module)
