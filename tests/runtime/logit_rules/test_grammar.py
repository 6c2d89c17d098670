"""The rule that keeps a text to a grammar, with an automaton written by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.grammar import Grammar, GrammarState
from flexspec.runtime.logit_rules.factory import make_rules
from flexspec.runtime.logit_rules.grammar import GrammarRule

VOCAB = 8
END = 7


@dataclass(frozen=True)
class Rising:
    """Each token is larger than the one before; the text may end once it has two. Nothing but the end follows token 6."""

    last: int = -1
    count: int = 0

    def start(self, tokenizer: Any, *, vocab_limit: int, end_token_ids: Sequence[int]) -> GrammarState:
        assert vocab_limit == VOCAB and list(end_token_ids) == [END]
        return self

    def allowed(self) -> np.ndarray:
        mask = np.arange(VOCAB) > self.last
        mask[END] = self.count >= 2
        return mask

    def advance(self, token: int) -> "Rising | None":
        return Rising(token, self.count + 1) if self.last < token < END else None


def rule(grammar: Grammar | None = None, prompt: Sequence[int] = (5, 5), new: Sequence[Sequence[int]] = ()) -> GrammarRule:
    made = GrammarRule(grammar or Rising(), None, vocab_size=VOCAB, ends=[END])
    for tokens in (prompt, *new):
        made.extend(tokens)
    return made


def left(made: GrammarRule, path: Sequence[int] = (), vocab: int = VOCAB) -> list[int]:
    """The tokens that are not banned; their logits are as they were."""
    before = np.linspace(-2, 3, vocab, dtype=np.float32)
    logits = before.copy()
    made.apply(logits, path)
    kept = np.flatnonzero(logits > -np.inf)
    assert (logits[kept] == before[kept]).all()
    return kept.tolist()


def test_the_prompt_is_no_part_of_the_text() -> None:
    assert left(rule(prompt=[6, 6])) == [0, 1, 2, 3, 4, 5, 6]


def test_every_node_has_the_mask_of_its_own_path() -> None:
    made = rule(new=[[1]])
    assert left(made) == [2, 3, 4, 5, 6]
    assert left(made, [4]) == [5, 6, END]
    assert left(made, [2]) == [3, 4, 5, 6, END]
    assert left(made, [2, 5]) == [6, END]
    assert left(made, [6]) == [END]
    assert left(made) == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("new", [[[0], [3], [4]], [[0, 3, 4]], [[0], [3, 4]], [[0, 3], [], [4]]])
def test_it_is_a_function_of_the_text_alone(new: list[list[int]]) -> None:
    made = rule()
    for tokens in new:
        left(made, [2, 3])
        left(made, [0, 0])
        made.extend(tokens)
    assert left(made) == [5, 6, END]
    assert left(made, [6]) == [END]


def test_logits_behind_a_break_stay_as_they_are() -> None:
    made = rule(new=[[3]])
    assert left(made, [2]) == left(made, [2, 4]) == left(made, [END]) == left(made, [5, END, 6]) == list(range(VOCAB))
    assert left(made, [5]) == [6, END]


def test_a_draft_model_s_vocabulary_may_be_another() -> None:
    made = rule(new=[[3]])
    assert left(made, vocab=6) == [4, 5]
    assert left(made, vocab=10) == [4, 5, 6]
    # None of the allowed tokens is known, so whatever it drafts is not accepted.
    assert left(made, vocab=4) == [0, 1, 2, 3]


def test_states_are_asked_once_in_a_step() -> None:
    asked: list[tuple[int, int]] = []

    @dataclass(frozen=True)
    class Counting(Rising):
        def allowed(self) -> np.ndarray:
            asked.append((self.last, self.count))
            return super().allowed()

        def advance(self, token: int) -> "Counting | None":
            after = super().advance(token)
            return None if after is None else Counting(after.last, after.count)

    made = rule(Counting(), new=[[1]])
    asked.clear()
    for _ in range(3):
        for path in ([], [2], [4], [2, 3]):
            left(made, path)
    assert asked == [(1, 1), (2, 2), (4, 2), (3, 3)]


def test_a_grammar_that_goes_no_further_bans_everything() -> None:
    class Liar(Rising):
        def advance(self, token: int) -> None:
            return None

    assert left(rule(Liar(), new=[[1]])) == []


def test_grammars_that_can_not_be_used_are_refused() -> None:
    with pytest.raises(UsageError, match="leave out ignore_eos, or give stop_token_ids"):
        GrammarRule(Rising(), None, vocab_size=VOCAB, ends=[VOCAB])

    class Nothing(Rising):
        def allowed(self) -> np.ndarray:
            return np.zeros(VOCAB, dtype=bool)

    class Long(Rising):
        def allowed(self) -> np.ndarray:
            return np.ones(VOCAB + 1, dtype=bool)

    class Numbers(Rising):
        def allowed(self) -> np.ndarray:
            return np.ones(VOCAB)

    with pytest.raises(UsageError, match="no text of this model's tokens"):
        rule(Nothing())
    for wrong in (Long(), Numbers()):
        with pytest.raises(UsageError, match=r"shape \[8\]"):
            rule(wrong)


def test_a_mask_that_is_wrong_later_is_refused_then() -> None:
    class Later(Rising):
        def advance(self, token: int) -> Any:
            return Wrong()

    class Wrong(Rising):
        def allowed(self) -> np.ndarray:
            return np.ones(3, dtype=bool)

    with pytest.raises(UsageError, match=r"shape \[8\]"):
        left(rule(Later()), [1])


def test_parameters_take_grammars_only() -> None:
    assert SamplingParams(grammar=Rising()).grammar == Rising()
    for wrong in ("a+", {"type": "object"}):
        with pytest.raises(UsageError, match=r"flexspec\.regex"):
            SamplingParams(grammar=wrong)


def test_it_comes_after_all_other_rules() -> None:
    params = SamplingParams(grammar=Rising(), logit_bias={1: 100.0}, min_tokens=2, presence_penalty=1.0)
    rules = make_rules(params, ends=[END], vocab_size=VOCAB)
    assert isinstance(rules[-1], GrammarRule) and len(rules) == 4
    assert str(rules[-1]) == "grammar=" + str(Rising())
