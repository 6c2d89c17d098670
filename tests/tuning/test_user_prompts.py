"""Prompts that users give: which can be used, and how they are answered."""

import pytest

from flexspec.api.prompts import PromptEncoder
from flexspec.bench.prompt_text import PromptText
from flexspec.errors import UsageError
from flexspec.tuning.make_corpus import ROUND_SIZE
from flexspec.tuning.user_prompts import UserPrompts, usable_prompts
from tiny_models import tiny_tokenizer
from tuning_cases import ScriptedEngine

TOKENIZER = tiny_tokenizer()


def prompt(text: str, chat: bool = False) -> PromptText:
    return PromptText(id="1", category="none", text=text, chat=chat)


def usable(*texts: PromptText, has_template: bool = True, room: int = 100) -> list[list[int]]:
    encoder = PromptEncoder(TOKENIZER, bos_token_id=None, name="tiny")
    return usable_prompts(texts, encoder, has_template=has_template, room=room)


def test_raw_text_and_what_users_say() -> None:
    found = usable(prompt("the"), prompt(" \n"), prompt("the", chat=True), prompt("x" * 200), prompt(""))
    assert [TOKENIZER.decode(one) for one in found] == ["the", "[user]the\n[assistant]"]
    assert [TOKENIZER.decode(one) for one in usable(prompt("the", chat=True), has_template=False)] == ["the"]


def test_no_usable_text() -> None:
    with pytest.raises(
        UsageError, match="none of the 3 prompts can be used: 2 have no text, 1 are longer than 100 tokens; give prompts with"
    ):
        usable(prompt(""), prompt(" \n\t"), prompt("x" * 101))


def test_they_are_answered_in_their_order_greedily() -> None:
    engine = ScriptedEngine()
    asked = [[5 + number % 200, 7] for number in range(ROUND_SIZE + 3)]
    source = UserPrompts(engine, asked, max_tokens=9)  # type: ignore[arg-type]
    rounds = [source.write_round(number, ROUND_SIZE) for number in range(3)]
    assert [len(drafts) for drafts in rounds] == [ROUND_SIZE, 3, 0]
    assert [draft.tokens[:2] for drafts in rounds for draft in drafts] == asked
    assert {(one.temperature, one.max_tokens) for _, params in engine.calls for one in params} == {(0.0, 9)}
    for draft in rounds[0]:
        text = draft.finish()
        assert text.is_answer.tolist() == [False, False] + [True] * (len(text.tokens) - 2)
    assert [draft.tokens for draft in source.write_round(0, 4)] == [draft.tokens for draft in rounds[0][:4]]
