"""Questions answered by the model, many at a time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flexspec.config import SamplingParams
from flexspec.runtime.engine import Engine
from flexspec.tuning.corpus import Text


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A text in the making.

    Attributes:
        tokens: its token ids.
        answers: [start, end) of each answer in it.
    """

    tokens: list[int]
    answers: tuple[tuple[int, int], ...] = ()

    @property
    def num_answered(self) -> int:
        """Answers it has."""
        return len(self.answers)

    def asked(self, tokens: list[int]) -> "Draft":
        """The same text grown to `tokens` by a question."""
        return Draft(tokens=tokens, answers=self.answers)

    def answered(self, tokens: Sequence[int]) -> "Draft":
        """The same text with another answer."""
        start = len(self.tokens)
        return Draft(tokens=[*self.tokens, *tokens], answers=(*self.answers, (start, start + len(tokens))))

    def finish(self) -> Text:
        """As it is kept."""
        is_answer = np.zeros(len(self.tokens), dtype=np.bool_)
        for start, end in self.answers:
            is_answer[start:end] = True
        return Text(tokens=np.array(self.tokens, dtype=np.int64), is_answer=is_answer)


def answer(engine: Engine, drafts: Sequence[Draft], *, max_tokens: int, temperature: float, seeds: Sequence[int]) -> list[Draft]:
    """Each text with the model's answer to it."""
    params = [SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed) for seed in seeds]
    outputs = engine.generate([draft.tokens for draft in drafts], params)
    return [draft.answered(output.token_ids) for draft, output in zip(drafts, outputs, strict=True)]
