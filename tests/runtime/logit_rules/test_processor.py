from typing import Any

import numpy as np
import pytest
import torch

from flexspec.errors import UsageError
from flexspec.runtime.logit_rules.processor import Processor


def rule_of(function: Any, vocab_size: int = 4) -> Processor:
    rule = Processor(function, vocab_size=vocab_size)
    rule.extend([7, 8])
    rule.extend([9])
    return rule


def test_it_sees_the_whole_text_and_the_path_and_may_change_what_it_gets() -> None:
    seen = []

    def changes(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(list(token_ids))
        token_ids.append(5)  # its own copy
        logits[1] = -torch.inf
        return logits

    rule = rule_of(changes)
    for _ in range(2):
        logits = np.ones(4, dtype=np.float32)
        rule.apply(logits, [3, 2])
        assert logits.tolist() == [1, -np.inf, 1, 1]
    assert seen == [[7, 8, 9, 3, 2]] * 2


def test_a_draft_model_of_another_vocabulary_gets_the_same_shape() -> None:
    def lifts_the_last(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        assert logits.shape == (4,)
        return logits + torch.tensor([0.0, 1.0, 0.0, 9.0])

    logits = np.ones(2, dtype=np.float32)
    rule_of(lifts_the_last).apply(logits, [])
    assert logits.tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_floating_point_types_and_gradients_are_taken(dtype: torch.dtype) -> None:
    logits = np.ones(4, dtype=np.float32)
    rule_of(lambda _, logits: (2 * logits).to(dtype).requires_grad_()).apply(logits, [])
    assert logits.tolist() == [2, 2, 2, 2]


def wrong_type(_token_ids: list[int], _logits: torch.Tensor) -> Any:
    return None


def wrong_shape(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits[None]


def too_short(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits[:-1]


def integers(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.long()


def not_a_number(_token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    return logits.index_fill(0, torch.tensor([2]), torch.nan)


class Infinite:
    def __call__(self, _token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        return logits + torch.inf


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (wrong_type, ["wrong_type", "NoneType", "[4]"]),
        (wrong_shape, ["wrong_shape", "[1, 4]", "[4]"]),
        (too_short, ["too_short", "[3]", "[4]"]),
        (integers, ["integers", "int64", "floating-point"]),
        (not_a_number, ["not_a_number", "nan", "token 2"]),
        (Infinite(), ["Infinite", "inf", "token 0"]),
    ],
)
def test_what_is_no_logits_is_refused_by_name(function: Any, parts: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        rule_of(function).apply(np.ones(4, dtype=np.float32), [])
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_function_that_raises_is_named() -> None:
    def breaks(token_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
        raise KeyError("unknown token")

    with pytest.raises(UsageError, match=r"logits processor '.*breaks' raised KeyError: 'unknown token'"):
        rule_of(breaks).apply(np.ones(4, dtype=np.float32), [])
