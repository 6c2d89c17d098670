"""Speculative sampling draws from the model's own distribution: a test on many seeds of one prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from flexspec.api.llm import LLM
from flexspec.bench.prompt_groups import BenchPrompt
from flexspec.checking.goodness_of_fit import Tokens, count_cells, p_value
from flexspec.checking.next_logits import next_logits
from flexspec.checking.row import CheckRow, count_drafts
from flexspec.config import SamplingParams
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Output
from flexspec.runtime.sampling import RequestSampler
from flexspec.tree_shape import TreeSpec

TEMPERATURE = 0.8
TOP_P = 0.95

_COUNTED = 3
"""New tokens that are looked at: the first comes from prefill, the others from a tree. More would spread the samples too thin."""
_CONTINUATION = 24
"""Tokens of the plain text among which a place to begin is looked for."""


@dataclass(frozen=True, kw_only=True)
class DistributionTest:
    """What is tested.

    Attributes:
        test: the verifier's name.
        tree: what is drafted.
        prompt: token ids, leaving room for `sampled_length` new ones.
        samples: number of seeds.
        threshold: p-value below which the test fails.
    """

    test: str
    tree: TreeSpec
    prompt: BenchPrompt
    samples: int
    threshold: float


def sampled_length(tree: TreeSpec) -> int:
    """New tokens of a text whose distribution is tested: one from prefill, and a whole path of the tree with its bonus token."""
    return max(tree.depth + 2, _COUNTED)


def informative_prefix(llm: LLM, loaded: LoadedModel, greedy: Output) -> list[int]:
    """A prompt, continued up to a place where the next token is almost certain and the one after it is not.

    The next token comes from prefill, whatever the verifier does; where it is certain, all samples serve to test the others.
    """
    sampler = _sampler(_params(1), loaded)
    continuation = greedy.token_ids[:_CONTINUATION]
    prefixes = [[*greedy.prompt_token_ids, *continuation[:count]] for count in range(len(continuation) + 1)]
    tops = np.array([_exact(llm, sampler, prefix).probs.max() for prefix in prefixes])
    return prefixes[int(np.argmax(tops[:-1] * tops[1:] * (1 - tops[1:])))]


def check_distribution(engine: Engine, llm: LLM, loaded: LoadedModel, test: DistributionTest) -> CheckRow:
    """Complete `prompt` with many seeds, and test the first new tokens against the distribution that the LLM's logits give.

    Args:
        engine: with the verifier that is tested.
        llm: the compiled model that the engine runs.
        loaded: the same model, for its vocabulary.
        test: what is tested.
    """
    prompt, samples = test.prompt.token_ids, test.samples
    # All texts go on past their end: a test on a length that depends on the outcome would be biased.
    shape = _params(sampled_length(test.tree))
    outputs = engine.generate([prompt] * samples, [replace(shape, seed=seed) for seed in range(samples)])
    for output in outputs:
        output.raise_for_error()
    sampler = _sampler(shape, loaded)

    def next_distribution(prefix: Tokens) -> Distribution:
        return _exact(llm, sampler, [*prompt, *prefix])

    cells = count_cells([tuple(output.token_ids) for output in outputs], next_distribution, _COUNTED)
    value, count = p_value(cells)
    drafted, accepted = count_drafts(outputs)
    impossible = f", {cells.impossible} texts have no probability" if cells.impossible else ""
    # Where rows depend on what shares their pass, rounding may move a token across the edge of top_p.
    invariance = llm.plan.llm.row_invariance
    sound = not (cells.impossible and invariance.chains and invariance.trees)
    return CheckRow(
        test=test.test,
        tree=test.tree,
        prompt=test.prompt.id,
        lossless=sound and value >= test.threshold,
        detail=f"p = {value:.3g}, {count} cells; {test.threshold:.1g} is wanted{impossible}",
        drafted=drafted,
        accepted=accepted,
        p_value=value,
    )


def _params(length: int) -> SamplingParams:
    return SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=length, ignore_eos=True)


def _sampler(params: SamplingParams, loaded: LoadedModel) -> RequestSampler:
    return RequestSampler(params, seed=0, vocab_limit=loaded.token_id_limit)


def _exact(llm: LLM, sampler: RequestSampler, tokens: Sequence[int]) -> Distribution:
    return sampler.distribution(next_logits(llm.plan.llm.model, tokens))
