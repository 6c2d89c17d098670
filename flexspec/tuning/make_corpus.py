"""Texts to tune on, made round by round until there are enough."""

from collections.abc import Callable
from typing import Protocol

from flexspec.tuning.answers import Draft
from flexspec.tuning.corpus import Corpus

ROUND_SIZE = 256
"""Conversations of a round: several times what runs at once, so that few wait for the last ones."""


class Source(Protocol):
    """Where conversations come from."""

    def write_round(self, number: int, size: int) -> list[Draft]:
        """Round `number`, the same whenever it is asked for; at most `size` texts, none once there are no more."""
        ...


def make_corpus(
    source: Source, corpus: Corpus, *, num_tokens: int, num_prompts: int | None = None, progress: Callable[[int], None]
) -> None:
    """Add rounds until the answers have `num_tokens` tokens, there are `num_prompts` texts, or the source has no more.

    Args:
        source: writes the rounds.
        corpus: grows; the rounds that it has are not written again.
        num_tokens: of all answers.
        num_prompts: None for any number; a text begins with one.
        progress: told the number of tokens after each round.
    """
    progress(corpus.num_answer_tokens)
    while corpus.num_answer_tokens < num_tokens:
        size = ROUND_SIZE if num_prompts is None else min(ROUND_SIZE, num_prompts - corpus.num_rounds * ROUND_SIZE)
        drafts = source.write_round(corpus.num_rounds, size) if size > 0 else []
        if not drafts:
            return
        corpus.add_round([draft.finish() for draft in drafts])
        progress(corpus.num_answer_tokens)
