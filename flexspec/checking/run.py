"""A whole check: greedy and seeded text against plain decoding, and the distribution of multi-step speculative sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flexspec.api.compile import compile
from flexspec.api.drafters import SHIPPED_DRAFTERS, make_drafting
from flexspec.api.engine import make_engine
from flexspec.api.llm import LLM
from flexspec.bench.interleave import Say
from flexspec.bench.prompt_text import PromptText, encode_text
from flexspec.checking.equality import first_difference
from flexspec.checking.row import CheckRow, count_drafts
from flexspec.checking.sampling_distribution import TEMPERATURE, TOP_P, check_distribution, informative_prefix, sampled_length
from flexspec.codegen.weight_store import WeightStore
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.output import Output

SIGNIFICANCE = 1e-3
"""Chance that a lossless system fails a whole check; each of its chi-square tests gets an equal part of it (Bonferroni)."""

_MSS_PROMPTS = 2


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """What is checked.

    Attributes:
        model: as `flexspec.compile` takes it.
        ssms: likewise.
        tokenizer: likewise.
        dtype: likewise.
        tree: likewise.
        max_tokens: new tokens of a text that is compared.
        samples: texts drawn for each chi-square test.
    """

    model: Any
    ssms: Sequence[Any] | None = None
    tokenizer: Any = None
    dtype: str | None = None
    tree: str | None = None
    max_tokens: int = 64
    samples: int = 512


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What came out.

    Attributes:
        llm: the compiled model.
        rows: one a test and prompt.
    """

    llm: LLM
    rows: Sequence[CheckRow]

    @property
    def lossless(self) -> bool:
        """Whether every test passed."""
        return all(row.lossless for row in self.rows)


def run_check(config: CheckConfig, texts: Sequence[PromptText], say: Say) -> CheckResult:
    """Compare speculation with plain decoding.

    Args:
        config: what is checked.
        texts: the prompts.
        say: is told what happens.

    Raises:
        UsageError: if an option is not allowed, there are no drafters, or a prompt does not fit.
    """
    if config.samples < 1:
        raise UsageError(f"samples={config.samples} is not allowed: give a whole number of at least 1")
    SamplingParams(max_tokens=config.max_tokens)
    ssms = SHIPPED_DRAFTERS.get(str(config.model), ()) if config.ssms is None else config.ssms
    if not ssms:
        raise UsageError("there is nothing to check without drafters: give at least one --ssm, for example --ssm ngram")
    say("compiling")
    llm = compile(config.model, ssms, tokenizer=config.tokenizer, dtype=config.dtype, tree=config.tree)
    loaded = load_model(config.model, tokenizer=config.tokenizer)
    prompts = [encode_text(llm, text) for text in texts]
    rows, greedy = _check_equality(config, llm, loaded, [text.id for text in texts], prompts, say)
    say("mss: compiling the drafters once more")
    mss = make_engine(llm.plan.llm.model, loaded, llm.plan.strategy, drafters=_drafters_again(ssms, llm, loaded), verifier="mss")
    prefixes = [(text.id, informative_prefix(llm, loaded, output)) for text, output in zip(texts, greedy, strict=True)]
    room = mss.max_len - sampled_length(llm)
    fitting = [(name, prefix) for name, prefix in prefixes if len(prefix) <= room]
    shortest = sorted(fitting, key=lambda named: len(named[1]))[:_MSS_PROMPTS]
    for name, prefix in shortest:
        say(f"mss, prompt {name}: {config.samples} texts")
        threshold = SIGNIFICANCE / len(shortest)
        rows.append(check_distribution(mss, llm, loaded, name, prefix, samples=config.samples, threshold=threshold))
    return CheckResult(llm=llm, rows=rows)


def _drafters_again(ssms: Sequence[Any], llm: LLM, loaded: LoadedModel) -> Sequence[Drafter]:
    """The drafters of `llm`, made anew: an engine's own serve no other engine."""
    strategy = llm.plan.strategy
    assert strategy.max_len is not None
    drafting = make_drafting(
        ssms,
        loaded,
        dtype=getattr(torch, strategy.dtype),
        buckets=strategy.buckets,
        store=WeightStore(),
        tree=strategy.tree,
        max_batch=strategy.max_batch,
        max_len=strategy.max_len,
        native=True,
    )
    return drafting.drafters


def _check_equality(
    config: CheckConfig, llm: LLM, loaded: LoadedModel, ids: Sequence[str], prompts: Sequence[Sequence[int]], say: Say
) -> tuple[list[CheckRow], list[Output]]:
    """Rows of both tests, and the plain greedy outputs."""
    plain = make_engine(llm.plan.llm.model, loaded, llm.plan.strategy, drafters=[])
    rows: list[CheckRow] = []
    greedy: list[Output] = []
    for test in ("greedy", "coupled"):
        params = [_params(test, seed, config.max_tokens) for seed in range(len(prompts))]
        say(f"{test}: {len(prompts)} prompts, plain")
        expected = plain.generate(prompts, params)
        say(f"{test}: {len(prompts)} prompts, speculative")
        outputs = llm.engine.generate(prompts, params)
        greedy = greedy or expected
        for prompt_id, one, other in zip(ids, expected, outputs, strict=True):
            difference = first_difference(llm.plan.llm.model, one, other)
            detail = f"{len(one.token_ids)} tokens identical" if difference is None else str(difference)
            drafted, accepted = count_drafts([other])
            rows.append(
                CheckRow(
                    test=test,
                    prompt=prompt_id,
                    lossless=difference is None,
                    detail=detail,
                    drafted=drafted,
                    accepted=accepted,
                    difference=difference,
                )
            )
    return rows, greedy


def _params(test: str, seed: int, max_tokens: int) -> SamplingParams:
    if test == "greedy":
        return SamplingParams(max_tokens=max_tokens)
    return SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=max_tokens, seed=seed)
