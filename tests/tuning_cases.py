"""A tiny tuning for tests: an LLM, prompts in token ids, and runs that take a second."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from flexspec.api.lower import Compilation, lower
from flexspec.bench.prompt_text import PromptText
from flexspec.codegen.weight_store import WeightStore
from flexspec.config import SamplingParams
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.strategy import Strategy
from flexspec.tuning import tune as tuning
from flexspec.tuning.config import DraftModelSettings, TrainingSettings, TuneConfig
from flexspec.tuning.corpus import Text
from flexspec.tuning.draft_models import Member, new_member
from flexspec.tuning.report import TuneReport
from tiny_models import random_prompt, tiny, tiny_tokenizer

TRIM = 40


@cache
def loaded() -> LoadedModel:
    """A tiny LLM with a tokenizer, in float32; nothing may change it."""
    return load_model(tiny("llama", layers=4), tokenizer=tiny_tokenizer())


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal, bit by bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def text(length: int, answer: int, seed: int = 0) -> Text:
    """Random tokens, the last `answer` of them an answer."""
    is_answer = np.arange(length) >= length - answer
    return Text(tokens=np.array(random_prompt(length, seed=seed), dtype=np.int64), is_answer=is_answer)


class MemoryStates:
    """As `StateFile`, with states that are in memory."""

    def __init__(self, states: Sequence[Tensor]) -> None:
        self._states = states

    def read(self, number: int) -> Tensor:
        return self._states[number]


def random_states(texts: Sequence[Text], columns: int, seed: int = 0) -> MemoryStates:
    """Random states of `texts`."""
    generator = torch.Generator().manual_seed(seed)
    return MemoryStates([torch.randn(len(one.tokens), columns, generator=generator).bfloat16() for one in texts])


def member(kind: str, *, states: Sequence[str] = ("model.norm",), count: int = TRIM, seed: int = 0, **settings: Any) -> Member:
    """An untrained draft model that drafts every seventh token or so."""
    token_ids = torch.arange(count) * 7
    return new_member(loaded(), DraftModelSettings(kind=kind, **settings), token_ids=token_ids, states=states, seed=seed)  # type: ignore[arg-type]


def config(kind: str = "head", *, vocab_trim: int | None = TRIM, pool: int = 1, answer_tokens: int = 24, **training: Any) -> TuneConfig:
    """Of a tuning with the user's prompts."""
    return TuneConfig(
        model="tiny",
        draft_model=DraftModelSettings(kind=kind, vocab_trim=vocab_trim),  # type: ignore[arg-type]
        training=TrainingSettings(**{"passes": 2, "batch_tokens": 512, "learning_rate": 3e-3} | training),
        pool=pool,
        data="prompts.jsonl",
        answer_tokens=answer_tokens,
    )


def prompts(count: int = 80) -> list[PromptText]:
    """Short prompts, all different."""
    return [
        PromptText(id=str(number), category="none", text=f"{number}: the {chr(97 + number % 26)}", chat=False) for number in range(count)
    ]


def run(wanted: TuneConfig, out: Path, *, resume: bool = False, asked: Sequence[PromptText] | None = None) -> TuneReport:
    """A tuning without a word."""
    return tuning.tune(wanted, out, prompts=prompts() if asked is None else asked, resume=resume, console=Console(file=StringIO()))


@cache
def compiled(states: tuple[str, ...]) -> Compilation:
    """`loaded()` as a tuning compiles it."""
    buckets = Strategy(dtype="bfloat16").buckets
    return lower(loaded(), dtype=torch.bfloat16, buckets=buckets, store=WeightStore(), hidden_states=states)


@contextmanager
def tiny_llm() -> Iterator[pytest.MonkeyPatch]:
    """Whatever model is named, a tuning gets `loaded()`, compiled once for all."""
    before = weights_of(loaded().module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "load_model", lambda name: loaded())
        patch.setattr(tuning, "lower", lambda llm, **options: compiled(tuple(options["hidden_states"])))
        yield patch
    assert same(before, weights_of(loaded().module)), "the LLM was changed"


class ScriptedEngine:
    """As `Engine` with `generate`: what it adds follows from the prompt and the seed alone, and ends with `eos` now and then.

    Attributes:
        calls: what it was asked: the prompts and the parameters.
    """

    def __init__(self, *, max_len: int = 2048, eos: int = 1, most: int = 12) -> None:
        self.max_len = max_len
        self.calls: list[tuple[list[list[int]], list[SamplingParams]]] = []
        self._eos, self._most = eos, most

    def generate(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> list[SimpleNamespace]:
        self.calls.append(([list(prompt) for prompt in prompts], list(params)))
        return [self._output(prompt, one) for prompt, one in zip(prompts, params, strict=True)]

    def _output(self, prompt: Sequence[int], params: SamplingParams) -> SimpleNamespace:
        assert prompt and len(prompt) + params.max_tokens <= self.max_len
        rng = np.random.default_rng([*prompt, params.seed or 0])
        tokens = rng.integers(3, 288, size=min(rng.integers(1, self._most), params.max_tokens)).tolist()
        stopped = bool(rng.integers(2))
        if stopped:
            tokens[-1] = self._eos
        return SimpleNamespace(token_ids=tokens, finish_reason="stop" if stopped else "length")
