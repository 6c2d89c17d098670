"""Every sampling parameter under trees: what comes out is what a plain loop without cache, rules or drafts writes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.logit_rules.min_tokens import MinTokens
from flexspec.runtime.logit_rules.penalties import OccurrencePenalties, RepetitionPenalty
from flexspec.runtime.logit_rules.processor import Processor
from flexspec.runtime.sampling import RequestSampler
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from toy_model import Float32, ToyModel

VOCAB = 24
EOS = (5, 9)
PROMPTS = [[3], [1, 2, 1, 2], list(range(9))]


def no_bigram_twice(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """Bans what would repeat a pair of tokens of the text."""
    seen = [after for before, after in pairwise(token_ids) if before == token_ids[-1]]
    return logits.index_fill(0, torch.tensor(seen, dtype=torch.int64), -torch.inf)


PARAMS: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.5},
    "frequency the other way": {"frequency_penalty": -0.4},
    "repetition": {"repetition_penalty": 1.4},
    "repetition the other way": {"repetition_penalty": 0.8},
    "bias": {"logit_bias": {4: -100, 6: 2.5, 11: -1.5, 17: -100}},
    "min_p": {"min_p": 0.2},
    "min_tokens": {"min_tokens": 16, "ignore_eos": False},
    "stop tokens": {"stop_token_ids": [4, 13], "ignore_eos": False},
    "min_tokens and stop tokens": {"min_tokens": 7, "stop_token_ids": [4, 13]},
    "processor": {"logits_processors": [no_bigram_twice]},
    "everything": {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {4: -100, 6: 1.5},
        "min_p": 0.05,
        "top_p": 0.95,
        "top_k": 20,
        "min_tokens": 12,
        "stop_token_ids": [13],
        "ignore_eos": False,
        "logits_processors": [no_bigram_twice],
    },
}
TREES: dict[str, Tree] = {
    "chain": TreeSpec(widths=(1, 1, 1, 1)),
    "tree": TreeSpec(widths=(2, 2, 1)),
    "adaptive": TreeLimits(depth=4, branch=2, budget=8),
}
DRAFTS: dict[str, Callable[[], Sequence[Drafter]]] = {
    "ngram": lambda: [NgramDrafter()],
    "merged": lambda: [ssm("half", noise=0.3), ssm("other", noise=0.6, noise_seed=5), NgramDrafter()],
    "a smaller vocabulary": lambda: [ssm("small", vocab_size=VOCAB - 4)],
    "a larger vocabulary": lambda: [ssm("large", vocab_size=VOCAB + 8)],
}
PAIRS = [
    ("chain", "a smaller vocabulary"),
    ("tree", "ngram"),
    ("tree", "merged"),
    ("tree", "a larger vocabulary"),
    ("adaptive", "merged"),
]


class Bigrams(ToyModel):
    """Looks at two tokens only, and keeps what it computed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(memory=2, seed=13, max_pass_tokens=64, **options)
        self._known: dict[tuple[int, ...], Float32] = {}

    def logits_of(self, path: Sequence[int]) -> Float32:
        end = tuple(path[-2:])
        if end not in self._known:
            self._known[end] = super().logits_of(end)
        return self._known[end]


@cache
def toy(**changes: Any) -> ToyModel:
    """The same arguments give the same model."""
    return Bigrams(**{"vocab_size": VOCAB, **changes})


def ssm(name: str, *, alpha: float = 1.0, **changes: Any) -> SsmDrafter:
    return SsmDrafter(name, toy(**changes), max_requests=4, block_size=80, alpha=alpha)


def engine_of(tree: Tree, drafters: Sequence[Drafter] = (), **options: Any) -> Engine:
    return Engine(toy(), drafters=drafters, tree=tree, max_batch=4, max_len=60, eos_token_ids=EOS, **options)


def ends_of(params: SamplingParams) -> set[int]:
    return set(params.stop_token_ids) | (set() if params.ignore_eos else set(EOS))


def changed(logits: Float32, prompt: list[int], new: list[int], params: SamplingParams) -> Float32:
    """The parameters by their definitions, token by token."""
    logits = logits.copy()
    for token in range(len(logits)):
        bias = params.logit_bias.get(token, 0)
        logits[token] += -np.inf if bias == -100 else np.float32(bias)
        if token in prompt or token in new:
            penalty = np.float32(params.repetition_penalty)
            logits[token] = logits[token] / penalty if logits[token] >= 0 else logits[token] * penalty
        if token in new:
            logits[token] -= np.float32(params.frequency_penalty) * np.float32(new.count(token)) + np.float32(params.presence_penalty)
    for function in params.processors:
        logits = function([*prompt, *new], torch.from_numpy(logits)).numpy()
    if len(new) < params.min_tokens:
        logits[list(ends_of(params))] = -np.inf
    return logits


def plain(prompt: list[int], params: SamplingParams, completion: int = 0) -> list[int]:
    """New tokens by a loop over the toy model's logits; the sampler in it knows of no rules."""
    sampler = RequestSampler(params, seed=params.seed or 0, vocab_limit=VOCAB, completion=completion)
    new: list[int] = []
    while len(new) < params.max_tokens and not (new and new[-1] in ends_of(params)):
        logits = changed(toy().logits_of([*prompt, *new]), prompt, new, params)
        new.append(sampler.pick(torch.from_numpy(logits), len(prompt) + len(new)))
    return new


def sampled(case: str, temperature: float, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 20, "temperature": temperature, "seed": 7, "ignore_eos": True, **PARAMS[case], **changes})


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("case", PARAMS)
def test_speculation_writes_what_the_plain_loop_writes(case: str, temperature: float, time_is_free: None) -> None:
    params = sampled(case, temperature)
    expected = [plain(prompt, params) for prompt in PROMPTS]
    without = SamplingParams(max_tokens=20, temperature=temperature, seed=7, ignore_eos=params.ignore_eos)
    assert expected != [plain(prompt, without) for prompt in PROMPTS] or (case == "min_p" and temperature == 0), "it has no effect"
    assert [output.token_ids for output in engine_of(TreeSpec(widths=())).generate(PROMPTS, params)] == expected
    for tree, draft in PAIRS:
        outputs = engine_of(TREES[tree], DRAFTS[draft]()).generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == expected, f"{tree}, {draft}"
        proposed, accepted = (sum(getattr(output.stats, count) for output in outputs) for count in ("drafted", "accepted"))
        assert 0 < accepted < proposed or draft == "ngram", f"{tree}, {draft}: {accepted} of {proposed}"
        for output in outputs:
            assert output.finish_reason == ("stop" if output.token_ids[-1] in ends_of(params) else "length")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("case", PARAMS)
def test_the_model_as_its_own_draft_drafts_under_the_same_rules(case: str, temperature: float) -> None:  # cases 15 and 33
    params = sampled(case, temperature, **({} if case != "min_p" and case != "everything" else {"min_p": 0.0, "top_p": 1.0, "top_k": 0}))
    outputs = engine_of(TREES["chain"], [ssm("self")]).generate(PROMPTS, params)
    assert [output.token_ids for output in outputs] == [plain(prompt, params) for prompt in PROMPTS]
    for output in outputs:
        # All is accepted, except what comes after an end.
        assert output.stats.accepted + output.stats.steps in (len(output.token_ids), len(output.token_ids) + 1)
        assert output.stats.steps <= 2 + len(output.token_ids) // 5


@pytest.mark.parametrize("case", PARAMS)
def test_streams_carry_the_same_tokens(case: str) -> None:
    params = sampled(case, 0.9)
    engine = engine_of(TREES["tree"], DRAFTS["merged"]())
    for prompt in PROMPTS[:2]:
        chunks = list(engine.stream(prompt, params))
        assert [token for chunk in chunks for token in chunk.token_ids] == plain(prompt, params)


def test_requests_of_unlike_parameters_share_a_batch() -> None:  # case 19
    params = [sampled(case, temperature) for case in PARAMS for temperature in (1e-6, 0.7)]
    prompts = [PROMPTS[place % 3] for place in range(len(params))]
    outputs = engine_of(TREES["tree"], DRAFTS["merged"]()).generate(prompts, params)
    for prompt, its_params, output in zip(prompts, params, outputs, strict=True):
        assert output.token_ids == plain(prompt, its_params)


MUTANTS = [
    (OccurrencePenalties, "presence"),
    (OccurrencePenalties, "frequency"),
    (RepetitionPenalty, "repetition"),
    (MinTokens, "min_tokens"),
    (Processor, "processor"),
]


@pytest.mark.parametrize(("rule", "case"), MUTANTS)
def test_a_rule_that_sees_the_committed_text_alone_is_found_out(rule: Any, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    apply = rule.apply
    monkeypatch.setattr(rule, "apply", lambda self, logits, path: apply(self, logits, []))
    params = sampled(case, 0.0, max_tokens=48)
    engine = engine_of(TREES["tree"], [ssm("self")])
    assert [output.token_ids for output in engine.generate(PROMPTS, params)] != [plain(prompt, params) for prompt in PROMPTS]


def test_a_bias_of_minus_100_bans_a_likely_token() -> None:  # case 16
    free = SamplingParams(max_tokens=50, ignore_eos=True)
    written = [token for prompt in PROMPTS for token in plain(prompt, free)]
    likely = max(set(written), key=written.count)
    assert written.count(likely) > 5
    for temperature in (0.0, 1.0):
        params = replace(free, temperature=temperature, seed=1, logit_bias={likely: -100})
        for output, prompt in zip(engine_of(TREES["tree"], DRAFTS["merged"]()).generate(PROMPTS, params), PROMPTS, strict=True):
            assert likely not in output.token_ids and output.token_ids == plain(prompt, params)
