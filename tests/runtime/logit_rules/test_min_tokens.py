import numpy as np
import pytest
import torch
from transformers import MinNewTokensLengthLogitsProcessor

from flexspec.runtime.logit_rules.min_tokens import MinTokens


@pytest.mark.parametrize("new", range(6))
@pytest.mark.parametrize("path", range(6))
def test_ends_are_banned_as_by_hugging_face(new: int, path: int) -> None:
    rule = MinTokens(5, {3, 1})
    rule.extend([1, 2])
    for _ in range(new):
        rule.extend([4])
    logits = np.arange(6, dtype=np.float32)
    theirs = MinNewTokensLengthLogitsProcessor(2, 5, [1, 3], device="cpu")
    text = torch.ones((1, 2 + new + path), dtype=torch.int64)
    expected = theirs(text, torch.from_numpy(logits.copy())[None])[0]
    for _ in range(2):
        changed = logits.copy()
        rule.apply(changed, [4] * path)
        assert changed.tolist() == expected.tolist()
    assert (-np.inf in expected.tolist()) == (new + path < 5)


def test_an_end_that_a_draft_model_lacks() -> None:
    rule = MinTokens(5, {3, 1})
    rule.extend([1])
    logits = np.zeros(2, dtype=np.float32)
    rule.apply(logits, [])
    assert logits.tolist() == [0, -np.inf]
