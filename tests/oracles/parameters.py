"""What every sampling parameter means, in plain arithmetic on one text: the reference for samplers and trees."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from flexspec.runtime.logit_rules.factory import make_rules
from flexspec.runtime.sampling import RequestSampler
from oracles.exactness import ROOT
from oracles.proposals import Text, to_distribution


class GivenDraws(RequestSampler):
    """The real sampler, but for where its chance comes from."""

    given: Draws

    def draws(self, index: int, stream: int = 0) -> Draws:
        return self.given


@dataclass(frozen=True)
class NeverTwice:
    """A grammar: no new token is the one before it, and the text does not end. It is its own state."""

    vocab: int
    ends: tuple[int, ...]
    last: int | None = None

    def start(self, tokenizer: Any, *, vocab_limit: int, end_token_ids: Collection[int]) -> "NeverTwice":
        return NeverTwice(vocab_limit, tuple(end_token_ids))

    def allowed(self) -> np.ndarray:
        return np.array([token != self.last and token not in self.ends for token in range(self.vocab)])

    def advance(self, token: int) -> "NeverTwice | None":
        return NeverTwice(self.vocab, self.ends, token) if self.allowed()[token] else None


def sampler_for(
    params: SamplingParams, *, vocab: int, ends: Collection[int], text: Text, draws: Draws, kind: type[GivenDraws] = GivenDraws
) -> GivenDraws:
    """The sampler of a request whose prompt is `ROOT` and whose whole text is `text`."""
    sampler = kind(params, seed=0, vocab_limit=vocab, rules=make_rules(params, ends=ends, vocab_size=vocab))
    sampler.given = draws
    sampler.extend(list(ROOT))
    sampler.extend(list(text[len(ROOT) :]))
    return sampler


def reference_distribution(params: SamplingParams, logits: list[float], text: Text, ends: Collection[int]) -> Distribution:
    """Of the token that follows `text`, whose prompt is `ROOT`, with `logits` after it."""
    new = list(text[len(ROOT) :])
    values = [logit + params.logit_bias.get(token, 0.0) for token, logit in enumerate(logits)]
    for token in set(text):
        values[token] = values[token] / params.repetition_penalty if values[token] > 0 else values[token] * params.repetition_penalty
    for token in set(new):
        values[token] -= params.presence_penalty + params.frequency_penalty * new.count(token)
    for processor in params.processors:
        values = processor(list(text), torch.tensor(values, dtype=torch.float32)).tolist()
    banned = {token for token, bias in params.logit_bias.items() if bias == -100}
    if len(new) < params.min_tokens:
        banned |= set(ends)
    if params.grammar is not None:
        banned |= set(ends) | set(new[-1:])
    scores = [-math.inf if token in banned else value / params.temperature for token, value in enumerate(values)]
    weights = [math.exp(score - max(scores)) for score in scores]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if params.top_k:
        order = order[: params.top_k]
    reached, nucleus, mass = 0.0, [], sum(weights[token] for token in order)
    for token in order:
        if reached >= params.top_p * mass:
            break
        nucleus.append(token)
        reached += weights[token]
    kept = [token for token in nucleus if weights[token] >= params.min_p]
    return to_distribution([weight if token in kept else 0.0 for token, weight in enumerate(weights)])
