"""The rules that a request asks for."""

from collections.abc import Collection
from typing import Any

from flexspec.config import SamplingParams
from flexspec.runtime.logit_rules.base import LogitRule
from flexspec.runtime.logit_rules.grammar import GrammarRule
from flexspec.runtime.logit_rules.logit_bias import LogitBias
from flexspec.runtime.logit_rules.min_tokens import MinTokens
from flexspec.runtime.logit_rules.penalties import OccurrencePenalties, RepetitionPenalty
from flexspec.runtime.logit_rules.processor import Processor


def make_rules(params: SamplingParams, *, ends: Collection[int], vocab_size: int, tokenizer: Any = None) -> list[LogitRule]:
    """New rules for one request, in the order in which they apply: what bans tokens comes last, so that nothing lifts it.

    Args:
        params: the request's; without any of the parameters in question there are no rules.
        ends: the tokens that end its text.
        vocab_size: token ids of the LLM, padding left out.
        tokenizer: the LLM's, or None; grammars want one.

    Raises:
        UsageError: as `GrammarRule`.
    """
    rules: list[LogitRule] = []
    if params.logit_bias:
        rules.append(LogitBias(params.logit_bias))
    if params.repetition_penalty != 1:
        rules.append(RepetitionPenalty(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        rules.append(OccurrencePenalties(presence=params.presence_penalty, frequency=params.frequency_penalty))
    rules += [Processor(function, vocab_size=vocab_size) for function in params.processors]
    if params.min_tokens and ends:
        rules.append(MinTokens(params.min_tokens, ends))
    if params.grammar is not None:
        rules.append(GrammarRule(params.grammar, tokenizer, vocab_size=vocab_size, ends=ends))
    return rules
