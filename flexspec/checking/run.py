"""A whole check: greedy and seeded text against plain decoding, and the distribution of every other verifier."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flexspec.api.compile import compile
from flexspec.api.engine import make_engine
from flexspec.api.llm import LLM
from flexspec.bench.drafters_again import drafters_again, given_drafters
from flexspec.bench.interleave import Say
from flexspec.bench.prompt_groups import BenchPrompt
from flexspec.bench.prompt_text import PromptText, encode_text
from flexspec.checking.config import CheckConfig
from flexspec.checking.equality import first_difference
from flexspec.checking.row import CheckRow, count_drafts
from flexspec.checking.sampling_distribution import (
    TEMPERATURE,
    TOP_P,
    DistributionTest,
    check_distribution,
    informative_prefix,
    sampled_length,
)
from flexspec.config import SamplingParams
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Output
from flexspec.tree_shape import Tree

SIGNIFICANCE = 1e-3
"""Chance that a lossless system fails a whole check; each of its chi-square tests gets an equal part of it (Bonferroni)."""

_GREEDY = "greedy"
_SAMPLED_PROMPTS = 2
"""Prompts of each test of a distribution."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What came out.

    Attributes:
        llm: the compiled model.
        rows: one a test, tree and prompt.
    """

    llm: LLM
    rows: Sequence[CheckRow]

    @property
    def lossless(self) -> bool:
        """Whether every test passed."""
        return all(row.lossless for row in self.rows)


def run_check(config: CheckConfig, texts: Sequence[PromptText], say: Say) -> CheckResult:
    """Compare speculation with plain decoding: verifiers that follow it with static and adaptive trees, the others with static ones.

    Args:
        config: what is checked.
        texts: the prompts.
        say: is told what happens.

    Raises:
        UsageError: if an option is not allowed, there are no drafters, or a prompt does not fit.
    """
    config.check()
    say("compiling")
    llm = compile(
        config.model,
        config.ssms,
        tokenizer=config.tokenizer,
        dtype=config.dtype,
        device=config.device,
        kv_cache_dtype=config.kv_cache_dtype,
        allow_reference_kernels=config.allow_reference_kernels,
        tree=config.tree,
    )
    loaded = load_model(config.model, tokenizer=config.tokenizer)
    prompts = [BenchPrompt(id=text.id, category=text.category, token_ids=encode_text(llm, text)) for text in texts]
    plain = make_engine(llm.plan.llm.model, loaded, llm.plan.strategy, drafters=[])
    rows = _check_equality(config, llm, loaded, plain, prompts, say)
    if config.samplers():
        rows += _check_distributions(config, llm, loaded, plain, prompts, say)
    return CheckResult(llm=llm, rows=rows)


def _engine(config: CheckConfig, llm: LLM, loaded: LoadedModel, tree: Tree, verifier: str | None = None) -> Engine:
    drafters = drafters_again(llm, given_drafters(config.model, config.ssms), tree)
    return make_engine(llm.plan.llm.model, loaded, llm.plan.strategy.replaced(tree=tree), drafters=drafters, verifier=verifier)


def _check_equality(
    config: CheckConfig, llm: LLM, loaded: LoadedModel, plain: Engine, prompts: Sequence[BenchPrompt], say: Say
) -> list[CheckRow]:
    rows: list[CheckRow] = []
    engines = {tree: _engine(config, llm, loaded, tree) for tree in config.trees()} if config.walks() else {}
    for test in config.walks():
        params = [_params(test, seed, config.max_tokens) for seed in range(len(prompts))]
        say(f"{test}: {len(prompts)} prompts, plain")
        expected = plain.generate([prompt.token_ids for prompt in prompts], params)
        for tree, engine in engines.items():
            say(f"{test}: {len(prompts)} prompts, tree {tree}")
            outputs = engine.generate([prompt.token_ids for prompt in prompts], params)
            pairs = zip(prompts, expected, outputs, strict=True)
            rows += [_compare(llm, test, tree, prompt.id, one, other) for prompt, one, other in pairs]
    return rows


def _compare(llm: LLM, test: str, tree: Tree, prompt_id: str, plain: Output, speculative: Output) -> CheckRow:
    difference = first_difference(llm.plan.llm.model, plain, speculative)
    drafted, accepted = count_drafts([speculative])
    return CheckRow(
        test=test,
        tree=tree,
        prompt=prompt_id,
        lossless=difference is None,
        detail=f"{len(plain.token_ids)} tokens identical" if difference is None else str(difference),
        drafted=drafted,
        accepted=accepted,
        difference=difference,
    )


def _check_distributions(
    config: CheckConfig, llm: LLM, loaded: LoadedModel, plain: Engine, prompts: Sequence[BenchPrompt], say: Say
) -> list[CheckRow]:
    """Rows of every verifier that follows plain decoding only on average."""
    tree, _ = config.trees()
    names = config.samplers()
    say("looking for places in plain text where the next token is open")
    greedy = plain.generate([prompt.token_ids for prompt in prompts], _params(_GREEDY, 0, config.max_tokens))
    pairs = zip(prompts, greedy, strict=True)
    continued = [replace(prompt, token_ids=informative_prefix(llm, loaded, output)) for prompt, output in pairs]
    fitting = [prompt for prompt in continued if len(prompt.token_ids) <= plain.max_len - sampled_length(tree)]
    shortest = sorted(fitting, key=lambda prompt: len(prompt.token_ids))[:_SAMPLED_PROMPTS]
    threshold = SIGNIFICANCE / max(len(shortest) * len(names), 1)
    rows: list[CheckRow] = []
    for name in names:
        engine = _engine(config, llm, loaded, tree, name)
        for prompt in shortest:
            say(f"{name}, prompt {prompt.id}: {config.samples} texts, tree {tree}")
            test = DistributionTest(test=name, tree=tree, prompt=prompt, samples=config.samples, threshold=threshold)
            rows.append(check_distribution(engine, llm, loaded, test))
    return rows


def _params(test: str, seed: int, max_tokens: int) -> SamplingParams:
    if test == _GREEDY:
        return SamplingParams(max_tokens=max_tokens)
    return SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=max_tokens, seed=seed)
