"""The tokens that a draft model can propose."""

from collections.abc import Iterable

import numpy as np

from flexspec.errors import UsageError
from flexspec.tuning.corpus import Int64, Text


def commonest_tokens(texts: Iterable[Text], *, vocab_size: int, count: int | None) -> Int64:
    """The `count` commonest tokens of all answers, ascending; all tokens if `count` is None.

    Tokens that never came up are taken in the order of their ids, which in byte-pair vocabularies is the order of their merges.

    Raises:
        UsageError: if `count` is not from 2 to `vocab_size`.
    """
    if count is None:
        return np.arange(vocab_size, dtype=np.int64)
    check_count(count, vocab_size)
    counts = np.zeros(vocab_size, dtype=np.int64)
    for text in texts:
        np.add.at(counts, text.tokens[text.is_answer], 1)
    chosen: Int64 = np.sort(np.argsort(-counts, kind="stable")[:count])
    return chosen


def check_count(count: int | None, vocab_size: int) -> None:
    """Passes if a vocabulary can be trimmed to `count` tokens.

    Raises:
        UsageError: if not.
    """
    if count is not None and not 2 <= count <= vocab_size:
        raise UsageError(f"vocab-trim={count} is not allowed: the vocabulary has {vocab_size} tokens, give a number from 2 to {vocab_size}")


def share_of(chosen: Int64, texts: Iterable[Text]) -> float:
    """How much of the answers of `texts` consists of `chosen` tokens."""
    answers = np.concatenate([text.tokens[text.is_answer] for text in texts])
    return float(np.isin(answers, chosen).mean())
