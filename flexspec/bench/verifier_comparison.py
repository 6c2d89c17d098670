"""How much every verifier accepts of equal trees, at several temperatures."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flexspec.api.compile import compile
from flexspec.api.engine import make_engine
from flexspec.api.llm import LLM
from flexspec.bench.contenders import COUPLED, ComparisonConfig, Contender
from flexspec.bench.drafters_again import drafters_again, given_drafters
from flexspec.bench.interleave import Say
from flexspec.bench.prompt_text import PromptText, encode_text
from flexspec.bench.statistics import Ratio, paired_ratio, pooled_ratio
from flexspec.config import SamplingParams
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.output import Output
from flexspec.strategy import tree_as_json
from flexspec.tree_shape import TreeSpec


@dataclass(frozen=True, kw_only=True)
class ComparisonRow:
    """One verifier at one temperature.

    Attributes:
        temperature: of the texts.
        contender: the verifier, and alpha, in words.
        verifier: its name.
        tokens_per_step: tokens a pass of the large model, prefill's left out; the interval is over prompts.
        drafted_per_step: nodes verified in such a pass, on average; what several children or drafters propose alike is one node.
        acceptance: accepted over drafted tokens, likewise.
        ratio: the reference's tokens a step over these, the geometric mean of the prompts' ratios; None for the reference.
        over_naive: these over those of naive sampling, likewise; None for naive sampling, and where that is not compared.
        learned_alphas: where alpha was learned, what it came to, by drafter.
        drafted: tokens drafted for all prompts.
        accepted: how many of them were accepted.
        tokens: of all prompts, those of prefill left out.
    """

    temperature: float
    contender: str
    verifier: str
    tokens_per_step: Ratio
    drafted_per_step: float
    acceptance: Ratio
    ratio: Ratio | None
    over_naive: Ratio | None
    learned_alphas: Mapping[str, float]
    drafted: int
    accepted: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class ComparisonResult:
    """What came out.

    Attributes:
        llm: the compiled model.
        tree: the trees' widths.
        reference: the contender that the others are compared with.
        prompts: how many.
        settings: what was asked for, defaults filled in.
        rows: by temperature and contender.
    """

    llm: LLM
    tree: TreeSpec
    reference: str
    prompts: int
    settings: dict[str, Any]
    rows: Sequence[ComparisonRow]

    def to_json(self) -> dict[str, Any]:
        """What `flexspec acceptance --json` writes."""
        return {"settings": self.settings, "reference": self.reference, "rows": [asdict(row) for row in self.rows]}


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """Of one prompt, over all its texts; the token and the pass of prefill are left out."""

    tokens: int
    steps: int
    drafted: int
    accepted: int

    @property
    def tokens_per_step(self) -> float:
        return self.tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One contender at one temperature: counts by prompt, and what alphas were learned."""

    counts: Sequence[_Counts]
    learned_alphas: Mapping[str, float]


def compare_verifiers(config: ComparisonConfig, texts: Sequence[PromptText], say: Say) -> ComparisonResult:
    """Complete the same prompts with every verifier, over one compiled LLM and one compiled set of SSMs.

    Each contender has drafters of its own at each temperature, so that what they learn stays with it.

    Args:
        config: what is compared.
        texts: the prompts.
        say: is told what happens.

    Raises:
        UsageError: if an option is not allowed, or a prompt does not fit.
    """
    tree = config.check()
    say(f"compiling {config.model}")
    llm = compile(
        config.model,
        config.ssms,
        dtype=config.dtype,
        device=config.device,
        kv_cache_dtype=config.kv_cache_dtype,
        allow_reference_kernels=config.allow_reference_kernels,
        tree=tree,
        max_batch=config.batch,
    )
    loaded = load_model(config.model)
    prompts = [encode_text(llm, text) for text in texts]
    contenders = config.contenders()
    reference = max(contenders, key=_standing)
    rows: list[ComparisonRow] = []
    for temperature in config.temperatures:
        runs: dict[Contender, _Run] = {}
        for contender in contenders:
            say(f"temperature {temperature:g}: {contender}, {len(prompts) * config.repeat} texts")
            runs[contender] = _run(config, llm, loaded, prompts, contender, temperature)
        naive = next((run for one, run in runs.items() if one.is_naive), None)
        rows += [_row(temperature, one, run, runs[reference], naive) for one, run in runs.items()]
    return ComparisonResult(
        llm=llm,
        tree=tree,
        reference=str(reference),
        prompts=len(prompts),
        settings=_settings(config, llm, tree, [text.id for text in texts]),
        rows=rows,
    )


def _standing(contender: Contender) -> int:
    """As the reference: coupled with a learned alpha before any other alpha, and these before naive sampling and the rest."""
    trusts_noise = contender.verifier == COUPLED and not contender.is_naive
    return trusts_noise + contender.learns


def _run(
    config: ComparisonConfig, llm: LLM, loaded: LoadedModel, prompts: Sequence[Sequence[int]], contender: Contender, temperature: float
) -> _Run:
    strategy = llm.plan.strategy
    drafters = drafters_again(llm, given_drafters(config.model, config.ssms), strategy.tree, alpha=contender.alpha)
    engine = make_engine(llm.plan.llm.model, loaded, strategy, drafters=drafters, verifier=contender.verifier)
    texts = [prompt for prompt in prompts for _ in range(config.repeat)]
    params = [
        SamplingParams(temperature=temperature, top_p=config.top_p, max_tokens=config.max_tokens, seed=seed) for seed in range(len(texts))
    ]
    outputs = engine.generate(texts, params)
    counts = [_count(outputs[first : first + config.repeat]) for first in range(0, len(outputs), config.repeat)]
    alphas = {drafter.name: drafter.alpha for drafter in drafters if contender.learns and isinstance(drafter, LevelDrafter)}
    return _Run(counts=counts, learned_alphas=alphas)


def _count(outputs: Sequence[Output]) -> _Counts:
    stats = [output.stats for output in outputs]
    return _Counts(
        tokens=sum(one.new_tokens - 1 for one in stats),
        steps=sum(one.steps - 1 for one in stats),
        drafted=sum(one.drafted for one in stats),
        accepted=sum(one.accepted for one in stats),
    )


def _row(temperature: float, contender: Contender, run: _Run, reference: _Run, naive: _Run | None) -> ComparisonRow:
    counts = run.counts
    return ComparisonRow(
        temperature=temperature,
        contender=str(contender),
        verifier=contender.verifier,
        tokens_per_step=pooled_ratio([one.tokens for one in counts], [one.steps for one in counts]),
        drafted_per_step=sum(one.drafted for one in counts) / max(sum(one.steps for one in counts), 1),
        acceptance=pooled_ratio([one.accepted for one in counts], [one.drafted for one in counts]),
        ratio=None if run is reference else _paired(reference.counts, counts),
        over_naive=None if naive is None or run is naive else _paired(counts, naive.counts),
        learned_alphas=run.learned_alphas,
        drafted=sum(one.drafted for one in counts),
        accepted=sum(one.accepted for one in counts),
        tokens=sum(one.tokens for one in counts),
    )


def _paired(reference: Sequence[_Counts], others: Sequence[_Counts]) -> Ratio | None:
    """None if all texts ended with their first token."""
    both = [(ours, theirs) for ours, theirs in zip(reference, others, strict=True) if ours.steps and theirs.steps]
    if not both:
        return None
    return paired_ratio([ours.tokens_per_step for ours, _ in both], [theirs.tokens_per_step for _, theirs in both])


def _settings(config: ComparisonConfig, llm: LLM, tree: TreeSpec, prompt_ids: Sequence[str]) -> dict[str, Any]:
    strategy = llm.plan.strategy
    return {
        "model": config.model,
        "dtype": strategy.dtype,
        "drafters": list(strategy.drafters),
        "tree": tree_as_json(tree),
        "top_p": config.top_p,
        "max_tokens": config.max_tokens,
        "repeat": config.repeat,
        "batch": config.batch,
        "prompts": list(prompt_ids),
    }
