"""Conversations that a model has with itself, on an engine that answers by a script."""

import pytest

from flexspec.errors import UsageError
from flexspec.tuning.answers import Draft
from flexspec.tuning.openings import OPENINGS
from flexspec.tuning.self_made import SelfMadeQuestions
from tiny_models import tiny_tokenizer
from tuning_cases import ScriptedEngine

TOKENIZER = tiny_tokenizer()
SIZE = 64


def ids(text: str) -> list[int]:
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def source(engine: ScriptedEngine, seed: int = 0, max_tokens: int = 160) -> SelfMadeQuestions:
    return SelfMadeQuestions(engine, TOKENIZER, seed=seed, max_tokens=max_tokens)  # type: ignore[arg-type]


def write(number: int, seed: int = 0) -> list[Draft]:
    return source(ScriptedEngine(), seed).write_round(number, SIZE)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_seed_and_a_round_say_it_all(number: int) -> None:
    engine = ScriptedEngine()
    writer = source(engine)
    writer.write_round(5, SIZE)
    assert writer.write_round(number, SIZE) == write(number), "whatever was written before"
    assert write(number) != write(number, seed=1) and write(number) != write(number + 1)


def test_half_of_the_questions_begin_with_an_opening() -> None:
    engine = ScriptedEngine()
    source(engine).write_round(1, 2000)
    asked, params = engine.calls[0]
    bare = sum(prompt == ids("[user]") for prompt in asked)
    assert 900 < bare < 1100
    assert {tuple(prompt) for prompt in asked if prompt != ids("[user]")} == {tuple(ids("[user]") + ids(opening)) for opening in OPENINGS}
    assert {(one.temperature, one.top_p) for one in params} == {(0.8, 0.95)} and len({one.seed for one in params}) == 2000


def test_the_answers_are_marked_and_nothing_else() -> None:
    engine = ScriptedEngine()
    drafts = source(engine).write_round(1, SIZE)
    (questions, _), (prompts, _) = engine.calls
    assert 0 < len(drafts) < len(questions) == SIZE, "questions that came out empty are left out"
    for draft, prompt in zip(drafts, prompts, strict=True):
        text = draft.finish()
        answer = text.tokens[text.is_answer].tolist()
        assert prompt[: len(ids("[user]"))] == ids("[user]") and prompt[-len(ids("\n[assistant]")) :] == ids("\n[assistant]")
        assert text.tokens.tolist() == prompt + answer and text.is_answer[len(prompt) :].all() and not text.is_answer[: len(prompt)].any()
        assert 1 not in prompt, "a question's end of text is no part of it"


@pytest.mark.parametrize(("number", "turns", "temperature"), [(0, 3, 0.0), (1, 1, 0.0), (3, 1, 1.0), (7, 1, 1.0), (8, 3, 0.0)])
def test_rounds_differ(number: int, turns: int, temperature: float) -> None:
    engine = ScriptedEngine()
    drafts = source(engine).write_round(number, SIZE)
    assert len(engine.calls) == 2 * turns
    assert {one.temperature for _, params in engine.calls[1::2] for one in params} == {temperature}
    assert drafts and {draft.num_answered for draft in drafts} == {turns}
    for draft in drafts:
        text = draft.finish()
        assert text.is_answer.sum() == sum(end - start for start, end in draft.answers)
        for _, end in draft.answers[:-1]:
            assert text.tokens[end : end + len(ids("\n[user]"))].tolist() == ids("\n[user]")


def test_conversations_that_grow_too_long_are_left_out() -> None:
    engine = ScriptedEngine(max_len=320 + 160 + 130, most=90)
    drafts = source(engine).write_round(0, SIZE)
    assert len(drafts) < len(engine.calls[0][0])
    assert all(len(prompt) + 480 <= engine.max_len for prompts, _ in engine.calls[::2] for prompt in prompts)


def test_too_few_positions() -> None:
    with pytest.raises(
        UsageError, match=r"512 tokens are too few for a question of 320 tokens .* and an answer of 160: give your own prompts"
    ):
        source(ScriptedEngine(max_len=512))


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{{ messages[0]['content'] }}",
        "{% for message in messages %}[{{ message['role'] }}]{{ message['content'] | upper }}\n{% endfor %}",
        "{{ raise_exception('a system message is needed') }}",
        "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    ],
    ids=["none", "one turn", "changes text", "refuses", "frameless"],
)
def test_without_a_usable_chat_template(template: str | None) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UsageError, match=r"has no chat template .* give your own prompts as data"):
        SelfMadeQuestions(ScriptedEngine(), tokenizer, seed=0, max_tokens=160)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no chat template"):
        SelfMadeQuestions(ScriptedEngine(), None, seed=0, max_tokens=160)  # type: ignore[arg-type]
