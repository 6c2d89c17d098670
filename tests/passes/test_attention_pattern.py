"""Attention written out in plain modules, found, and run before and after."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.ir.ops import ATTENTION
from flexspec.ir.slopes import slopes_of
from flexspec.ir.verify import verify
from flexspec.passes.attention_pattern import recognise_attention
from flexspec.passes.canonicalize import canonicalize
from flexspec.passes.constant_index import simplify_moves
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from graph_cases import graph_logits

HEADS, KV_HEADS, DIM, VOCAB = 4, 2, 8, 16
SLOPES = 2.0 ** -torch.arange(1, HEADS + 1).float()

Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""q [batch, heads, tokens, dim], k and v with KV heads, distances of keys behind queries [tokens, tokens] → as q."""


class Plain(nn.Module):
    """Two layers of attention written by hand."""

    def __init__(self, attend: Attend, kv_heads: int = KV_HEADS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.kv_heads = attend, kv_heads
        self.embed, self.places = nn.Embedding(VOCAB, HEADS * DIM), nn.Embedding(512, HEADS * DIM)
        self.qkv = nn.ModuleList(nn.Linear(HEADS * DIM, (HEADS + 2 * kv_heads) * DIM) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(2))
        self.head = nn.Linear(HEADS * DIM, VOCAB)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        batch, tokens = input_ids.shape
        x = self.embed(input_ids) + self.places(position_ids)
        places = torch.arange(tokens)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            heads = qkv(x).view(batch, tokens, -1, DIM).transpose(1, 2)
            q, k, v = heads.split([HEADS, self.kv_heads, self.kv_heads], dim=1)
            mixed = self.attend(q, k, v, places[:, None] - places[None, :])
            x = x + out(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return self.head(x)


def repeated(k: Tensor, heads: int = HEADS) -> Tensor:
    batch, kv_heads, tokens, dim = k.shape
    return k[:, :, None].expand(batch, kv_heads, heads // kv_heads, tokens, dim).reshape(batch, heads, tokens, dim)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Callable[[Tensor], Tensor]) -> Tensor:
    weights = torch.softmax(mask(q @ repeated(k).transpose(-1, -2)), dim=-1)
    return F.dropout(weights, 0.0) @ repeated(v)


def batched(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
    """BLOOM's form: heads are part of the batch, and the bias is added by the product."""
    batch, heads, tokens, dim = q.shape
    q, k, v = (one.reshape(batch * heads, tokens, dim) for one in (q, repeated(k), repeated(v)))
    bias = (SLOPES[:, None, None] * torch.arange(tokens)).repeat(batch, 1, 1)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=1.0, alpha=DIM**-0.5).view(batch, heads, tokens, tokens)
    weights = scores.masked_fill(d < 0, -1e9).softmax(-1).view(batch * heads, tokens, tokens)
    return torch.bmm(weights, v).view(batch, heads, tokens, dim)


def blocks(d: Tensor, size: int) -> Tensor:
    """How many blocks a key is behind a query."""
    block = torch.arange(d.shape[0]) // size
    return block[:, None] - block[None, :]


def seen(d: Tensor, window: int) -> Tensor:
    return (d >= 0) & (d < window)


PLAIN = DIM**-0.5
CASES: dict[str, tuple[Attend, tuple[Any, ...]]] = {
    "sdpa, causal": (lambda q, k, v, d: F.scaled_dot_product_attention(q, repeated(k), repeated(v), is_causal=True), (PLAIN, None, None)),
    "sdpa, groups": (
        lambda q, k, v, d: F.scaled_dot_product_attention(q, k, v, attn_mask=d >= 0, scale=0.5, enable_gqa=True),
        (0.5, None, None),
    ),
    "sdpa, window of a float mask": (
        lambda q, k, v, d: F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), attn_mask=torch.where(seen(d, 3), 0.0, -torch.inf)
        ),
        (PLAIN, 3, None),
    ),
    "window longer than what is tried": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: torch.where(seen(d, 1000), s * 0.25, -1e30)),
        (0.25, 1000, None),
    ),
    "window of a float": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: torch.where((d >= 0) & (d.float() < 1000.0), s * 0.25, -1e30)),
        (0.25, 1000, None),
    ),
    "window of a tensor": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: torch.where((d >= 0) & (d < torch.tensor(1000)), s, -10000)),
        (1.0, 1000, None),
    ),
    "window that clamps": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: s.masked_fill((d < 0) | (d.clamp(max=9000) != d), -1e9)),
        (1.0, 9001, None),
    ),
    "no scale": (lambda q, k, v, d: written_out(q, k, v, lambda s: s.masked_fill(d < 0, -1e4)), (1.0, None, None)),
    "soft cap": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: (torch.tanh(s / 8) * 4).masked_fill(d < 0, -torch.inf)),
        (0.5, None, 4.0),
    ),
    "baddbmm, ALiBi": (batched, (PLAIN, None, None)),
}


def logits(module: nn.Module, length: int) -> Tensor:
    ids = torch.arange(2 * length).view(2, length) % VOCAB
    with torch.no_grad():
        return module(ids, torch.arange(length).repeat(2, 1))


def recognised(attend: Attend) -> tuple[Plain, ModelGraph]:
    """A module, and its graph with attention recognised."""
    module = Plain(attend)
    model = capture(module, name="plain")
    with torch.no_grad():
        run_passes(model, (canonicalize, simplify_moves, recognise_attention))
    return module, model


@pytest.mark.parametrize("name", CASES)
def test_attention_is_found(name: str) -> None:
    attend, expected = CASES[name]
    module, after = recognised(attend)
    attentions = after.nodes(ATTENTION)
    assert len(attentions) == 2 and after.notes[-1].matches == 2
    for node in attentions:
        scale, window, softcap = node.args[3:6]
        assert (scale, window) == (pytest.approx(expected[0], rel=1e-5), expected[1])
        assert softcap == (None if expected[2] is None else pytest.approx(expected[2]))
        assert [int(arg.meta["val"].shape[2]) for arg in node.args[:3]] == [HEADS, KV_HEADS, KV_HEADS]
        assert (node.args[7] is not None) == ("ALiBi" in name)
    assert not any("softmax" in str(node.target) or "scaled_dot" in str(node.target) for node in after.graph.nodes)
    for length in (1, 6):
        torch.testing.assert_close(logits(after.module, length), logits(module, length), atol=1e-5, rtol=1e-5)
    if "ALiBi" in name:
        assert torch.equal(after.parameter(attentions[0].args[7]), SLOPES) and attentions[0].args[7] is attentions[1].args[7]


def test_keys_repeated_before_they_are_turned_are_turned_once() -> None:
    def turned(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
        angles = (d[:, :1] * 0.1).float()  # [tokens, 1]
        q, k = (x * angles.cos() + torch.cat((-x[..., 4:], x[..., :4]), -1) * angles.sin() for x in (q, repeated(k)))
        return F.scaled_dot_product_attention(q, k, repeated(v), is_causal=True)

    module, after = recognised(turned)
    assert [int(arg.meta["val"].shape[2]) for arg in after.nodes(ATTENTION)[0].args[:3]] == [HEADS, KV_HEADS, KV_HEADS]
    torch.testing.assert_close(logits(after.module, 6), logits(module, 6), atol=1e-5, rtol=1e-5)


REFUSED: dict[str, tuple[Attend, str]] = {
    "sees all": (lambda q, k, v, d: F.scaled_dot_product_attention(q, repeated(k), repeated(v)), "neither causal nor a sliding window"),
    "weights used twice": (
        lambda q, k, v, d: q * torch.softmax(q @ q.transpose(-1, -2), -1).sum(-1)[..., None],
        "used for something else",
    ),
    "chunks longer than what is tried": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: s.masked_fill((d < 0) | (blocks(d, 512) != 0), -1e9)),
        "counts positions in blocks",
    ),
    "a window of many small blocks": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: s.masked_fill((d < 0) | (blocks(d, 64) >= 50), -1e9)),
        "counts positions in blocks",
    ),
    "a bias that ends further on than what is tried": (
        lambda q, k, v, d: written_out(q, k, v, lambda s: s.masked_fill(d < 0, -1e9) - SLOPES[:, None, None] * d.clamp(max=800)),
        "does not grow evenly",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_refused(name: str) -> None:
    attend, message = REFUSED[name]
    with pytest.raises(UsageError, match=f"model plain: attention .* is not supported: .*{message}"):
        recognised(attend)


def test_a_mask_of_tokens_is_refused() -> None:
    class Padded(Plain):
        def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
            hidden = (input_ids == 0)[:, None, None, :]
            self.attend = lambda q, k, v, d: written_out(q, k, v, lambda s: s.masked_fill((d < 0) | hidden, -1e9))
            return super().forward(input_ids, position_ids)

    model = capture(Padded(lambda q, k, v, d: q), name="padded")
    canonicalize(model)
    with pytest.raises(UsageError, match=r"model padded: attention .*(depends on what the tokens are|one product of queries and keys)"):
        recognise_attention(model)


def test_a_bias_in_a_short_float_type_limits_the_text() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
        bias = SLOPES.bfloat16()[:, None, None] * torch.arange(d.shape[0]).bfloat16()
        return written_out(q, k, v, lambda s: (s + bias.float()).masked_fill(d < 0, -1e9))

    assert recognised(attend)[1].facts.max_positions == 257


def test_a_bias_in_half_precision_limits_the_text() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
        bias = SLOPES.half()[:, None, None] * torch.arange(d.shape[0]).half()
        return written_out(q, k, v, lambda s: (s + bias.float()).masked_fill(d < 0, -1e9))

    assert recognised(attend)[1].facts.max_positions == 2048


class Library(nn.Module):
    """PyTorch's own attention, which lets tokens lead and folds heads into the batch."""

    def __init__(self, **options: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.mix, self.head = nn.Embedding(VOCAB, 32), nn.MultiheadAttention(32, HEADS), nn.Linear(32, VOCAB)
        self.options = options

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.embed(input_ids).transpose(0, 1)
        future = torch.ones(*x.shape[:1] * 2, dtype=torch.bool).triu(1)
        return self.head((x + self.mix(x, x, x, attn_mask=future, **self.options)[0]).transpose(0, 1))


@pytest.mark.parametrize("weights", [True, False])
def test_pytorchs_own_attention(weights: bool) -> None:
    module = Library(need_weights=weights)
    model = capture(module.eval(), name="library")
    with torch.no_grad():
        run_passes(model, RECOGNITION)
    torch.testing.assert_close(graph_logits(model, torch.arange(9)), logits(module, 9)[0], atol=1e-5, rtol=1e-5)


def test_a_table_that_ends_limits_the_text() -> None:
    table = SLOPES[:, None, None] * torch.arange(-99.0, 1.0)

    def attend(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
        return written_out(q, k, v, lambda scores: (scores + table[:, :, -scores.shape[-1] :]).masked_fill(d < 0, -1e9))

    assert recognised(attend)[1].facts.max_positions == 100


def test_heads_may_be_part_of_the_batch_for_queries_and_keys_alone() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, d: Tensor) -> Tensor:
        q, k = q.flatten(0, 1), repeated(k).flatten(0, 1)
        scores = torch.bmm(q, k.transpose(1, 2)).view(v.shape[0], HEADS, *d.shape).masked_fill(d < 0, -1e9)
        return scores.softmax(-1) @ repeated(v)

    module, after = recognised(attend)
    torch.testing.assert_close(logits(after.module, 6), logits(module, 6), atol=1e-5, rtol=1e-5)


def test_both_pipelines_follow_and_keep_the_slopes() -> None:
    _, model = recognised(batched)
    with torch.no_grad():
        run_passes(model, RECOGNITION)
        verify(model, "recognised")
        run_passes(model, SERVING)
        verify(model, "serving")
    (slopes,) = slopes_of(model)
    assert model.graph.find_nodes(op="call_module") and torch.equal(model.parameter(slopes), SLOPES)
