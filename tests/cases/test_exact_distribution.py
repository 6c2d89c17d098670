"""Case 3: sampled text has exactly the language model's own distribution, whatever the verifier and the width."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from compile_once import compiled, recorded
from flexspec import SamplingParams
from tiny_models import tiny

VOCAB, HORIZON, REQUESTS = 8, 4, 600
PROMPT = [3, 1, 6]
TEMPERATURE, TOP_P = 0.7, 0.9
VERIFIERS = ("coupled", "mss", "without_replacement", "point_mass", "traversal")
CASES = [(verifier, width) for verifier in VERIFIERS for width in (1, 2, 4)]
QUICK = {("coupled", 1), ("coupled", 4), ("mss", 2), ("without_replacement", 2), ("point_mass", 2), ("traversal", 2)}
TESTS_A_CASE = 4


@cache
def llm_module():
    return tiny("llama", seed=5, layers=1, vocab=VOCAB)


@cache
def ssm_module():
    return tiny("llama", seed=6, layers=1, vocab=VOCAB)


def truncated(logits: np.ndarray) -> np.ndarray:
    """[rows, vocab] probabilities: temperature, then the smallest set of likeliest tokens that reaches top_p."""
    scores = logits.astype(np.float64) / TEMPERATURE
    probs = np.exp(scores - scores.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    order = np.argsort(-probs, axis=1, kind="stable")
    mass_before = np.cumsum(np.take_along_axis(probs, order, axis=1), axis=1) - np.take_along_axis(probs, order, axis=1)
    keep = np.zeros_like(probs, dtype=bool)
    np.put_along_axis(keep, order, mass_before < TOP_P, axis=1)
    probs = np.where(keep, probs, 0)
    return probs / probs.sum(axis=1, keepdims=True)


@cache
def exact() -> np.ndarray:
    """[vocab] * HORIZON: the joint probability of the new tokens, from the module's own logits."""
    joint = np.ones(())
    for depth in range(HORIZON):
        texts = torch.tensor([[*PROMPT, *path] for path in product(range(VOCAB), repeat=depth)])
        with torch.no_grad():
            rows = truncated(llm_module()(texts).logits[:, -1].numpy())
        joint = joint[..., None] * rows.reshape((VOCAB,) * (depth + 1))
    return joint


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """Of Pearson's chi-square test, the cells expected fewer than 5 times pooled; impossible cells must be empty."""
    assert counts[probs == 0].sum() == 0, "a token that top_p excludes was emitted"
    expected = probs * counts.sum()
    pooled = expected < 5
    cells = [(counts[~pooled], expected[~pooled]), (counts[pooled].sum(keepdims=True), expected[pooled].sum(keepdims=True))]
    seen, wanted = (np.concatenate(part) for part in zip(*cells, strict=True))
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    assert len(seen) >= 4, "too few cells to tell anything"
    return float(chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(seen) - 1))


@pytest.mark.parametrize(("verifier", "width"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in CASES])
def test_row_03_tokens_have_exactly_the_models_own_distribution(verifier, width):
    # A pass of 512 tokens holds a whole tree of each request: 20 drafted nodes at width 4.
    max_batch = 64 if width < 4 else 24
    llm = compiled(llm_module(), [ssm_module()], tree=[width, width], verifier=verifier, max_batch=max_batch, max_len=32)
    records = recorded(llm)
    first_seed = 10_000 * CASES.index((verifier, width))
    params = [
        SamplingParams(max_tokens=HORIZON, temperature=TEMPERATURE, top_p=TOP_P, seed=first_seed + number) for number in range(REQUESTS)
    ]
    outputs = llm.generate([PROMPT] * REQUESTS, params)
    accepted = sum(output.stats.accepted for output in outputs)
    assert 0 < accepted < sum(output.stats.drafted for output in outputs)
    few = (verifier, width) == ("point_mass", 1)
    assert sum(len(record.path) == 3 for record in records) > (0 if few else 20), "no two drafts in a row were accepted"

    counts = np.zeros((VOCAB,) * HORIZON)
    for output in outputs:
        counts[tuple(output.token_ids)] += 1
    # Token 1 comes from the prompt's pass, 2 to 4 from trees: their pairs, and everything at once.
    parts = [(0, 1), (1, 2), (2, 3), (0, 1, 2, 3)]
    for axes in parts:
        others = tuple(axis for axis in range(HORIZON) if axis not in axes)
        p = p_value(counts.sum(axis=others).ravel(), exact().sum(axis=others).ravel())
        assert p > 0.01 / (len(CASES) * TESTS_A_CASE), f"tokens {axes}: p = {p:.1e}"


def test_the_test_would_notice_untruncated_or_untempered_text():
    """The same counts against a distribution that is a little off."""
    llm = compiled(llm_module(), max_batch=64, max_len=32)
    params = [SamplingParams(max_tokens=HORIZON, temperature=0.8, top_p=TOP_P, seed=number) for number in range(REQUESTS)]
    counts = np.zeros((VOCAB,) * HORIZON)
    for output in llm.generate([PROMPT] * REQUESTS, params):
        counts[tuple(output.token_ids)] += 1
    try:
        p = p_value(counts.sum(axis=(2, 3)).ravel(), exact().sum(axis=(2, 3)).ravel())
    except AssertionError:
        return
    assert p < 0.01 / (len(CASES) * TESTS_A_CASE)
