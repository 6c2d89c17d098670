"""Questions that the model asks itself."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from transformers import PreTrainedTokenizerBase

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.engine import Engine
from flexspec.tuning.answers import Draft, answer
from flexspec.tuning.chat_frame import chat_frame
from flexspec.tuning.corpus import Int64, Text
from flexspec.tuning.openings import OPENINGS

_QUESTION = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=320)
_FEWEST_TOKENS = 4
_ROUNDS = 8
"""Rounds differ: every eighth has three turns, and every fourth is answered at temperature 1."""


class SelfMadeQuestions:
    """An instruct model completes the opening of a user's turn, and then answers: data without a dataset.

    Half of the questions begin with one of `OPENINGS`.

    Args:
        engine: of the model.
        tokenizer: the model's.
        seed: the same one writes the same texts.
        max_tokens: most tokens of an answer.

    Raises:
        UsageError: if the model has no chat template to open a turn with, or too few positions for question and answer.
    """

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerBase | None, *, seed: int, max_tokens: int) -> None:
        frame = chat_frame(tokenizer) if tokenizer is not None else None
        if tokenizer is None or frame is None:
            raise UsageError(
                "the model has no chat template with a user's and an assistant's turns, so it can't ask itself questions: give your own "
                "prompts as data"
            )
        self.tokenizer = tokenizer
        self._engine = engine
        self._frame = frame
        self._seed = seed
        self._max_tokens = max_tokens
        self._openings = [tokenizer(opening, add_special_tokens=False)["input_ids"] for opening in OPENINGS]
        longest = len(frame.opening) + max(map(len, self._openings))
        if longest > self._room:
            raise UsageError(
                f"{engine.max_len} tokens are too few for a question of {_QUESTION.max_tokens} tokens that the model asks itself and an "
                f"answer of {max_tokens}: give your own prompts as data"
            )

    @property
    def _room(self) -> int:
        """Most tokens before what the model adds to a question."""
        return self._engine.max_len - _QUESTION.max_tokens - self._max_tokens - len(self._frame.answer)

    def write_round(self, number: int, size: int) -> list[Draft]:
        """Round `number`: `size` conversations, fewer where a question came out empty or the text too long."""
        rng = np.random.default_rng((self._seed, number))
        drafts = [Draft(tokens=list(self._frame.opening)) for _ in range(size)]
        for _ in range(3 if number % _ROUNDS == 0 else 1):
            drafts = self._answer(self._ask(drafts, rng), number, rng)
        return drafts

    def write_answers(self, number: int, closed: Sequence[list[int]], open_: Sequence[list[int]]) -> list[Draft]:
        """Round `number` with given questions: first those that are whole, then those that the model completes.

        Args:
            number: of the round.
            closed: token ids of whole questions; those that are too long are left out.
            open_: of questions that the model completes.
        """
        rng = np.random.default_rng((self._seed, number, 1))
        first = Draft(tokens=list(self._frame.opening))
        whole = [[*self._frame.opening, *words, *self._frame.answer] for words in closed]
        drafts = [first.asked(tokens) for tokens in whole if len(tokens) + self._max_tokens <= self._engine.max_len]
        drafts += self._complete([(first, [*self._frame.opening, *words], len(words)) for words in open_], rng)
        return self._answer(drafts, number, rng)

    def first_turn(self, text: Text) -> tuple[Int64, Int64]:
        """The tokens of the first question and of the first answer in one of these texts."""
        given = np.append(~text.is_answer, True)
        start = int(given.argmin())
        end = start + int(given[start:].argmax())
        return text.tokens[len(self._frame.opening) : start - len(self._frame.answer)], text.tokens[start:end]

    def _answer(self, drafts: Sequence[Draft], number: int, rng: np.random.Generator) -> list[Draft]:
        temperature = 1.0 if number % _ROUNDS in (3, 7) else 0.0
        seeds = [int(seed) for seed in rng.integers(2**63, size=len(drafts))]
        return answer(self._engine, drafts, max_tokens=self._max_tokens, temperature=temperature, seeds=seeds)

    def _ask(self, drafts: Sequence[Draft], rng: np.random.Generator) -> list[Draft]:
        opened = []
        for draft in drafts:
            tokens = draft.tokens if draft.num_answered == 0 else self._frame.next_question(draft.tokens)
            chosen = int(rng.integers(2 * len(self._openings)))
            words = self._openings[chosen] if chosen < len(self._openings) and draft.num_answered == 0 else []
            opened.append((draft, [*tokens, *words], len(words)))
        return self._complete(opened, rng)

    def _complete(self, opened: Sequence[tuple[Draft, list[int], int]], rng: np.random.Generator) -> list[Draft]:
        """Texts with a question, of which so many tokens are given, that the model completes; not those without room for it."""
        opened = [one for one in opened if len(one[1]) <= self._room]
        params = [replace(_QUESTION, seed=int(seed)) for seed in rng.integers(2**63, size=len(opened))]
        outputs = self._engine.generate([tokens for _, tokens, _ in opened], params)
        asked = []
        for (draft, tokens, given), output in zip(opened, outputs, strict=True):
            question = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
            if given + len(question) >= _FEWEST_TOKENS:
                asked.append(draft.asked([*tokens, *question, *self._frame.answer]))
        return asked
