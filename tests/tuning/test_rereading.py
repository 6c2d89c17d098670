"""Questions about texts that were written before."""

from pathlib import Path

import pytest

from flexspec.tuning.corpus import Corpus
from flexspec.tuning.rereading import TASKS, Rereading
from flexspec.tuning.self_made import SelfMadeQuestions
from tiny_models import tiny_tokenizer
from tuning_cases import ScriptedEngine

TOKENIZER = tiny_tokenizer()
SIZE = 64


def rereading(corpus: Corpus, engine: ScriptedEngine, *, num_tokens: int, seed: int = 0) -> Rereading:
    questions = SelfMadeQuestions(engine, TOKENIZER, seed=seed, max_tokens=160)  # type: ignore[arg-type]
    return Rereading(questions, corpus, seed=seed, num_tokens=num_tokens)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """One round, not yet about others."""
    corpus = Corpus(tmp_path)
    source = rereading(corpus, ScriptedEngine(most=60), num_tokens=1)
    corpus.add_round([draft.finish() for draft in source.write_round(0, SIZE)])
    return corpus


def spoken(tokens: list[int]) -> str:
    return str(TOKENIZER.decode(tokens))


def test_the_last_part_is_about_what_is_there(corpus: Corpus) -> None:
    there = corpus.num_answer_tokens
    early, late = ScriptedEngine(), ScriptedEngine()
    rereading(corpus, early, num_tokens=int(there / 0.84)).write_round(1, SIZE)
    drafts = rereading(corpus, late, num_tokens=int(there / 0.86)).write_round(1, SIZE)
    assert len(early.calls[0][0]) == SIZE and max(map(len, early.calls[0][0])) < 60
    assert len(drafts) > SIZE // 2 and len(max((draft.tokens for draft in drafts), key=len)) > 200
    assert {len(draft.answers) for draft in drafts} == {1}


def test_what_is_read_was_asked_or_answered_before(corpus: Corpus) -> None:
    engine = ScriptedEngine()
    drafts = rereading(corpus, engine, num_tokens=1).write_round(1, 200)
    before = [spoken(text.tokens[text.is_answer][:20].tolist()) for text in corpus]
    told = [spoken(draft.tokens) for draft in drafts]
    assert sum(any(len(one) > 10 and one[:10] in text for one in before) for text in told) > 100
    for task in TASKS:
        assert any(task.before in text and task.after in text for text in told), task
    assert all(1 not in draft.tokens[: draft.answers[0][0]] for draft in drafts), "ends of text are no part of what is read"


def test_open_questions_are_completed_and_whole_ones_only_answered(corpus: Corpus) -> None:
    engine = ScriptedEngine()
    drafts = rereading(corpus, engine, num_tokens=1).write_round(1, SIZE)
    (opened, asking), (questions, answering) = engine.calls
    assert 0 < len(opened) < SIZE and {one.temperature for one in asking} == {0.8}
    assert len(questions) == len(drafts) and {one.temperature for one in answering} == {0.0}
    ends = tuple(task.after for task in TASKS if task.is_open)
    assert all(spoken(prompt).endswith(ends) for prompt in opened)


def test_a_seed_and_what_is_there_say_it_all(corpus: Corpus) -> None:
    def write(number: int, seed: int) -> list[list[int]]:
        return [draft.tokens for draft in rereading(corpus, ScriptedEngine(), num_tokens=1, seed=seed).write_round(number, SIZE)]

    assert write(1, 0) == write(1, 0)
    assert write(1, 0) != write(2, 0) and write(1, 0) != write(1, 1)


def test_questions_that_leave_no_room_are_left_out(corpus: Corpus) -> None:
    engine = ScriptedEngine(max_len=620)
    drafts = rereading(corpus, engine, num_tokens=1).write_round(1, SIZE)
    assert 0 < len(drafts) < SIZE
    assert all(len(prompt) + 160 <= 620 for prompt in engine.calls[-1][0])
