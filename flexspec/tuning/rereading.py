"""Questions about texts that the model wrote before: long contexts at the price of reading them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flexspec.tuning.answers import Draft
from flexspec.tuning.corpus import Corpus, Text
from flexspec.tuning.self_made import SelfMadeQuestions

SHARE = 0.15
"""Of the answers' tokens, the last ones: by then there is something to read."""
_CONTEXT = (100, 700)
"""Tokens that are read, from and to; short ones as likely as long ones."""
_LONGEST_PASSAGE = 330
_SHORTEST_PASSAGE = 16
_MOST_PASSAGES = 12
_QUESTIONS = 1 / 3
"""Share of the passages that were questions; the others were answers."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked about passages.

    Attributes:
        before: them.
        label: of each passage, `{}` standing for its number.
        after: them.
        is_open: whether the model completes the question.
    """

    before: str = ""
    label: str = ""
    after: str = ""
    is_open: bool = False


TASKS: tuple[Task, ...] = (
    Task(before="Summarize the following article.\n\n"),
    Task(before="Write a short summary of this text:\n\n"),
    Task(before="Summarize these texts, one sentence for each.\n\n", label="Text {}: "),
    Task(after="\n\nSummarize the text above in a few sentences."),
    Task(after="\n\nWhat is the main idea of this text?"),
    Task(after="\n\nTurn this into a list of key points."),
    Task(after="\n\nExplain this in your own words."),
    Task(after="\n\nList the names, places and numbers in the text above."),
    Task(after="\n\nWrite three questions about this text, with their answers."),
    Task(after="\n\nTranslate the text above into French."),
    Task(before="Translate this text into German:\n\n"),
    Task(before="Rewrite the following text in simpler words:\n\n"),
    Task(before="Correct the mistakes in this text:\n\n"),
    Task(before="Continue this text:\n\n"),
    Task(before="Use the following documents to answer the question.\n\n", label="Document {}: ", after="\n\nQuestion:", is_open=True),
    Task(before="Answer the question from these sources.\n\n", label="[{}] ", after="\n\nQuestion: What", is_open=True),
    Task(before="Context: ", after="\n\nQuestion: Who", is_open=True),
    Task(before="Read the passage and answer the question.\n\nPassage: ", after="\n\nQuestion: How", is_open=True),
    Task(after="\n\nAccording to the text above,", is_open=True),
    Task(after="\n\nGiven this,", is_open=True),
)


class Rereading:
    """Self-made texts of which the last are about those before them.

    Args:
        questions: writes the first ones, and completes and answers questions.
        corpus: holds what was written; it grows as rounds are added.
        seed: the same one writes the same texts.
        num_tokens: that all answers are to have.
    """

    def __init__(self, questions: SelfMadeQuestions, corpus: Corpus, *, seed: int, num_tokens: int) -> None:
        self._questions = questions
        self._tokenizer = questions.tokenizer
        self._corpus = corpus
        self._seed = seed
        self._first_tokens = (1.0 - SHARE) * num_tokens

    def write_round(self, number: int, size: int) -> list[Draft]:
        """As `Source.write_round`."""
        if self._corpus.num_answer_tokens < self._first_tokens:
            return self._questions.write_round(number, size)
        rng = np.random.default_rng((self._seed, number))
        earlier = list(self._corpus)
        closed: list[list[int]] = []
        opened: list[list[int]] = []
        for _ in range(size):
            task = TASKS[int(rng.integers(len(TASKS)))]
            (opened if task.is_open else closed).append(self._write(task, earlier, rng))
        return self._questions.write_answers(number, closed, opened)

    def _write(self, task: Task, earlier: Sequence[Text], rng: np.random.Generator) -> list[int]:
        room = int(rng.integers(*_CONTEXT))
        tokens = self._encode(task.before)
        for count in range(1, _MOST_PASSAGES + 1):
            passage = self._passage(earlier[int(rng.integers(len(earlier)))], is_question=rng.random() < _QUESTIONS)[:room]
            tokens += [*self._encode(("\n\n" if count > 1 else "") + task.label.format(count)), *passage]
            room -= len(passage)
            if room < _SHORTEST_PASSAGE:
                break
        return tokens + self._encode(task.after)

    def _passage(self, text: Text, *, is_question: bool) -> list[int]:
        question, first_answer = self._questions.first_turn(text)
        special = self._tokenizer.all_special_ids
        return [token for token in (question if is_question else first_answer)[:_LONGEST_PASSAGE].tolist() if token not in special]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []
