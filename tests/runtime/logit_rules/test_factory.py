import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.logit_rules.factory import make_rules


def names(params: SamplingParams, ends: tuple[int, ...] = (3,)) -> list[str]:
    return [str(rule) for rule in make_rules(params, ends=ends, vocab_size=8)]


def test_a_request_that_asks_for_nothing_has_no_rules() -> None:
    assert names(SamplingParams()) == names(SamplingParams(temperature=0.7, top_p=0.9, min_p=0.1, top_k=3, stop=["x"])) == []
    assert names(SamplingParams(min_tokens=3), ends=()) == []


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(presence_penalty=0.5), ["presence_penalty=0.5, frequency_penalty=0"]),
        (SamplingParams(frequency_penalty=-0.5), ["presence_penalty=0, frequency_penalty=-0.5"]),
        (SamplingParams(repetition_penalty=1.25), ["repetition_penalty=1.25"]),
        (SamplingParams(logit_bias={1: -100, 3: 2}), ["logit_bias of 2 tokens"]),
        (SamplingParams(min_tokens=3), ["min_tokens=3"]),
        (SamplingParams(logits_processors=[max, min]), ["logits processor 'max'", "logits processor 'min'"]),
    ],
)
def test_each_parameter_has_its_rule_and_messages_can_name_it(params: SamplingParams, expected: list[str]) -> None:
    assert names(params) == expected


def test_the_order_is_that_of_the_documentation() -> None:
    def greets_the_end(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        return logits.index_fill(0, torch.tensor([3]), 99.0)

    params = SamplingParams(
        logit_bias={1: 3.0},
        repetition_penalty=2.0,
        frequency_penalty=1.0,
        presence_penalty=0.5,
        logits_processors=greets_the_end,
        min_tokens=9,
    )
    rules = make_rules(params, ends=(3,), vocab_size=4)
    logits = np.array([1.0, 1.0, -1.0, 1.0], dtype=np.float32)
    for rule in rules:
        rule.extend([2])
        rule.extend([1])
        rule.apply(logits, [1])
    assert logits.tolist() == [1.0, (1 + 3) / 2 - 2 * 1 - 0.5, -2.0, -np.inf]


def test_every_request_has_rules_of_its_own() -> None:
    params = SamplingParams(repetition_penalty=2.0)
    (one,), (other,) = (make_rules(params, ends=(), vocab_size=4) for _ in range(2))
    one.extend([0])
    other.extend([1])
    logits = np.ones(4, dtype=np.float32)
    other.apply(logits, [])
    assert logits.tolist() == [1, 0.5, 1, 1]
