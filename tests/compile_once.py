"""Compiles every model with a config once a session, whatever it is called, and keeps models and references.

`flexspec.compile` itself runs in full; only capture, passes and code generation of a model that was compiled before are not repeated.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import flexspec
from flexspec import LLM, Output, SamplingParams
from flexspec.api.lower import Compilation, lower
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.onnx_file import OnnxDecoder
from flexspec.models.shared_copy import shared_copy
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.output import StepRecord
from flexspec.runtime.token_tree import Draw, TokenTree
from tiny_models import greedy_reference, random_prompt, tiny

ADAPTIVE = {"depth": 4, "branch": 2, "budget": 8}
"""Limits of adaptive trees for tests; the fixture `time_is_free` sees to it that such trees are drafted at all."""

_COMPILED: dict[Any, Compilation] = {}


@pytest.fixture(autouse=True, scope="module")
def compile_once() -> Iterator[None]:
    """Import it into a conftest.py; what was compiled is kept from one test file to the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flexspec.api.compile.lower", _lower_once)
        patch.setattr("flexspec.api.drafters.lower", _lower_once)
        yield


def _lower_once(loaded: LoadedModel, **options: Any) -> Compilation:
    config = _config(loaded.module)
    if config is None:
        return lower(loaded, **options)
    key: tuple[Any, ...] = (config, _digest(loaded.module), options["dtype"], tuple(options["buckets"]), options["native"])
    key += (tuple(options.get("hidden_states", ())), options.get("feature_size", 0))
    if key not in _COMPILED:
        _COMPILED[key] = lower(loaded, **options)
    return replace(_COMPILED[key], name=loaded.name)


def _config(module: Any) -> str | None:
    """All that shapes the graph; None for modules that don't say."""
    if isinstance(module, OnnxDecoder):
        return f"{module.config} {module.graph.code}"
    if hasattr(module, "config"):
        return repr({name: value for name, value in module.config.to_dict().items() if name != "eos_token_id"})
    return repr(module.head_config) if hasattr(module, "head_config") else None


def _digest(module: torch.nn.Module) -> str:
    """Of the weights."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@cache
def model(family: str = "llama", seed: int = 0, layers: int = 2, vocab: int = 288) -> PreTrainedModel:
    """A tiny model; the same arguments give the same object."""
    return tiny(family, seed=seed, layers=layers, vocab=vocab)


def with_eos(module: PreTrainedModel, *eos: int) -> PreTrainedModel:
    """The same weights with other ends of text."""
    copy: PreTrainedModel = shared_copy(module)
    copy.config.eos_token_id = copy.generation_config.eos_token_id = list(eos)
    return copy


@cache
def unrelated() -> PreTrainedModel:
    """A draft model that has nothing to do with any other, of another size: other layers, heads and dimensions."""
    return tiny("llama", seed=77, layers=1, hidden_size=24, num_attention_heads=3, num_key_value_heads=1, intermediate_size=40)


@cache
def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """A random prompt."""
    return tuple(random_prompt(length, seed))


@cache
def reference(length: int, n: int, family: str = "llama", **options: Any) -> list[int]:
    """What Hugging Face's greedy `generate` adds to `prompt(length)`."""
    return greedy_reference(model(family, **options), list(prompt(length)), n)


def greedy(llm: LLM, length: int, n: int, **params: Any) -> Output:
    """The completion of `prompt(length)` by `n` tokens."""
    return llm.generate(list(prompt(length)), SamplingParams(max_tokens=n, **params))[0]


def self_drafter(llm: LLM, *, alpha: float = 1.0, name: str = "self") -> SsmDrafter:
    """The language model as its own draft model."""
    return SsmDrafter(name, llm.plan.llm.model, max_requests=8, block_size=600, alpha=alpha)


def recorded(llm: LLM) -> list[StepRecord]:
    """The list that all further steps of `llm` are appended to."""
    records: list[StepRecord] = []
    llm.engine.observer = records.append
    return records


def compiled(module: Any, ssms: Sequence[Any] = (), **options: Any) -> LLM:
    """`flexspec.compile` with few requests and short texts, unless `options` say otherwise; without drafters `tree` is left out."""
    if not ssms:
        options.pop("tree", None)
    return flexspec.compile(module, list(ssms), **({"max_batch": 4, "max_len": 480} | options))


class KnowingDrafter:
    """Proposes the tree that `make_tree` makes of what follows the text in the sequence it was told.

    Args:
        texts: whole texts, prompts included; a request follows the one that it begins like.
        make_tree: takes the root, the true continuation, and how long the text is; gives tokens and parents.
    """

    name = "knowing"

    def __init__(self, texts: Sequence[Sequence[int]], make_tree: Any) -> None:
        self._texts = [list(text) for text in texts]
        self._make_tree = make_tree

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        return [self._tree(request) for request in requests]

    def release(self, request_id: int) -> None:
        pass

    def _tree(self, request: DraftRequest) -> TokenTree:
        text = list(request.tokens)
        follows = next((known[len(text) :] for known in self._texts if known[: len(text)] == text), [])
        tokens, parents = self._make_tree(text[-1], follows, len(text))
        draws: dict[int, list[Draw]] = {}
        for node in range(1, len(tokens)):
            draws.setdefault(parents[node], []).append(Draw(node=node, q=None))
        return TokenTree(tokens=tokens, parents=parents, draws=draws if request.children is not Children.ANY else {})


def wrong(token: int, vocab: int = 288) -> int:
    """Another token."""
    return (token + 1) % vocab


def logits_after(module: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """[vocab] of the token that follows `ids`."""
    with torch.no_grad():
        return module(torch.tensor([list(ids)])).logits[0, -1]
