"""Decoders that people write themselves, attention and positions in their own way: greedy text is that of a loop without cache."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compile_once import compiled, model
from flexspec import SamplingParams, UsageError, compile
from flexspec.ir.logits import logits_of
from tiny_models import MIN_DISTINCT, TINY_VOCAB, greedy_reference, random_prompt

DIM, HEADS, KV_HEADS, POSITIONS = 32, 4, 2, 256
HEAD_DIM = DIM // HEADS


def causal(tokens: int) -> Tensor:
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / HEAD_DIM**0.5
    return scores.masked_fill(~causal(q.shape[-2]), float("-inf")).softmax(-1) @ v


class Block(nn.Module):
    """A pre-norm layer, rotary if it is given angles."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], kv_heads: int) -> None:
        super().__init__()
        self.attend, self.kv_heads = attend, kv_heads
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.qkv = nn.Linear(DIM, (HEADS + 2 * kv_heads) * HEAD_DIM)
        self.out, self.up, self.down = nn.Linear(DIM, DIM), nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x: Tensor, angles: Tensor | None) -> Tensor:
        batch, tokens, _ = x.shape
        split = [HEADS * HEAD_DIM, self.kv_heads * HEAD_DIM, self.kv_heads * HEAD_DIM]
        q, k, v = (one.view(batch, tokens, -1, HEAD_DIM).transpose(1, 2) for one in self.qkv(self.norms[0](x)).split(split, dim=-1))
        if angles is not None:
            q, k = turned(q, angles), turned(k, angles)
        k, v = (one.repeat_interleave(HEADS // self.kv_heads, dim=1) for one in (k, v))
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, tokens, DIM))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


def turned(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Decoder(nn.Module):
    """Two layers; subclasses say where tokens are."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor], kv_heads: int = HEADS) -> None:
        super().__init__()
        self.embed = nn.Embedding(TINY_VOCAB, DIM)
        self.blocks = nn.ModuleList(Block(attend, kv_heads) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, TINY_VOCAB, bias=False)

    def run(self, x: Tensor, angles: Tensor | None = None) -> Tensor:
        for block in self.blocks:
            x = block(x, angles)
        return self.head(self.norm(x))


class Learned(Decoder):
    """Positions counted by arange pick rows of a table."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.places = nn.Embedding(POSITIONS, DIM)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.run(self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1])))


class Sines(Decoder):
    """A table of sines, cut to the length."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        rates = 1000.0 ** (-torch.arange(0, DIM, 2) / DIM)
        angles = torch.arange(POSITIONS)[:, None] * rates
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), -1).view(1, POSITIONS, DIM))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.run(self.embed(input_ids) * DIM**0.5 + self.table[:, : input_ids.shape[1]])


class Rotary(Decoder):
    """Angles of arange; fewer KV heads than heads."""

    def forward(self, input_ids: Tensor) -> Tensor:
        rates = 100.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        return self.run(self.embed(input_ids), torch.outer(torch.arange(input_ids.shape[1]).float(), rates))


class Given(Decoder):
    """Positions are an input."""

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        rates = 100.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        return self.run(self.embed(input_ids), position_ids[:, None, :, None] * rates)


class Library(Learned):
    """PyTorch's own layers, told what to see by a mask alone."""

    def __init__(self) -> None:
        super().__init__(sdpa)
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)])

    def run(self, x: Tensor, angles: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.blocks[0](x, mask=nn.Transformer.generate_square_subsequent_mask(x.shape[1]))))


class OneByOne(Learned):
    """A module for each head, as one learns it, and the loss is returned too."""

    def __init__(self) -> None:
        super().__init__(sdpa)
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(DIM, HEAD_DIM, bias=False) for _ in range(3)) for _ in range(2 * HEADS))

    def forward(self, input_ids: Tensor) -> tuple[Tensor, None]:
        x, tokens = self.embed(input_ids) + self.places(torch.arange(input_ids.shape[1])), input_ids.shape[1]
        for layer in (self.heads[:HEADS], self.heads[HEADS:]):
            results = []
            for query, key, value in layer:
                scores = (query(x) @ key(x).mT) * HEAD_DIM**-0.5
                results.append(scores.masked_fill(~causal(tokens), float("-inf")).softmax(-1) @ value(x))
            x = x + torch.cat(results, dim=-1)
        return self.head(self.norm(x)), None


class Complex(Decoder):
    """LLaMA's own way to turn pairs of dims."""

    def __init__(self) -> None:
        super().__init__(lambda q, k, v: sdpa(self.turned(q), self.turned(k), v))
        angles = torch.outer(torch.arange(POSITIONS).float(), 100.0 ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[: x.shape[2]]).flatten(-2)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.run(self.embed(input_ids))


MODULES: dict[str, Callable[[], Decoder]] = {
    "learned, sdpa": lambda: Learned(sdpa),
    "sines, written out": lambda: Sines(written_out),
    "rotary, written out": lambda: Rotary(written_out, KV_HEADS),
    "given, sdpa": lambda: Given(sdpa, KV_HEADS),
    "PyTorch's layers": Library,
    "heads one by one": OneByOne,
    "complex rotary": Complex,
}


def made(name: str, seed: int = 0) -> Decoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = MODULES[name]()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.5)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return module.eval()


def loop(module: nn.Module, ids: list[int], n: int) -> list[int]:
    text = list(ids)
    positions = [torch.arange(len(ids) + n)[None]] if isinstance(module, Given) else []
    for _ in range(n):
        with torch.no_grad():
            logits = logits_of(module(torch.tensor([text]), *(one[:, : len(text)] for one in positions)))
            text.append(int(logits[0, -1].argmax()))
    return text[len(ids) :]


QUICK = ("learned, sdpa", "rotary, written out", "heads one by one")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MODULES])
def test_text_is_that_of_a_loop(name: str, time_is_free: None) -> None:
    module = made(name)
    lengths = {1: 120, 9: 20, 100: 20}
    prompts = [random_prompt(length, seed=length) for length in lengths]
    expected = [loop(module, ids, n) for ids, n in zip(prompts, lengths.values(), strict=True)]
    assert len(set(expected[0])) >= MIN_DISTINCT
    for ssms in ([], ["suffix"]):
        outputs = compiled(module, ssms, max_len=240).generate(prompts, [SamplingParams(max_tokens=n) for n in lengths.values()])
        assert [output.token_ids for output in outputs] == expected
        accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
        assert 0 < accepted < drafted if ssms else drafted == 0


@pytest.mark.parametrize("name", ["learned, sdpa", pytest.param("rotary, written out", marks=pytest.mark.slow)])
def test_they_draft_for_others(name: str) -> None:
    """An unrelated draft model with other positions changes nothing."""
    ids = random_prompt(20)
    llm = compiled(model("llama", seed=1), [made(name)], tree=[2, 1, 1], max_len=240)
    (output,) = llm.generate(ids, SamplingParams(max_tokens=40))
    assert output.token_ids == greedy_reference(model("llama", seed=1), ids, 40) and output.stats.drafted > 0


@pytest.mark.slow
def test_they_accept_all_of_their_own_drafts() -> None:
    """Positions of a tree's nodes are right."""
    module = made("rotary, written out")
    (output,) = compiled(module, [made("rotary, written out")], tree=[1, 1, 1], max_len=240).generate(
        random_prompt(20), SamplingParams(max_tokens=41)
    )
    assert output.stats.accepted == output.stats.drafted == 30


@pytest.mark.slow
def test_positions_end_with_the_table() -> None:
    with pytest.raises(UsageError, match=rf"{POSITIONS}"):
        compiled(made("sines, written out"), [], max_len=POSITIONS + 1)


def test_what_is_counted_in_another_way_is_refused_with_what_to_do() -> None:
    class Scaled(Decoder):
        def forward(self, input_ids: Tensor) -> Tensor:
            tokens = input_ids.shape[1]
            return self.run(self.embed(input_ids) * (torch.arange(tokens) / tokens)[:, None])

    with pytest.raises(UsageError, match=r"forward\(input_ids, position_ids\)"):
        compiled(Scaled(sdpa), [])


def test_what_is_not_recognised_runs_as_it_is_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class OwnNorm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-3)

    module = Learned(sdpa)
    module.norm = OwnNorm()
    ids = random_prompt(7)
    (output,) = compile(module, [], dtype="float32").generate([ids], SamplingParams(max_tokens=8, temperature=0))
    (told,) = [record.getMessage() for record in caplog.records if record.name == "flexspec"]
    assert "model Learned: passes did not recognise all that they should have (recognise_norm 0 of 1 places)" in told
    for token in output.token_ids:
        assert token == int(module(torch.tensor([ids]))[0, -1].argmax())
        ids.append(token)
