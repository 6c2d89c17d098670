"""The commonest tokens of answers."""

import numpy as np
import pytest

from flexspec.errors import UsageError
from flexspec.tuning.corpus import Text
from flexspec.tuning.draft_vocabulary import check_count, commonest_tokens, share_of

TEXTS = [
    Text(tokens=np.array([9, 9, 9, 5, 5, 2]), is_answer=np.array([False, False, False, True, True, True])),
    Text(tokens=np.array([1, 5, 7, 7, 2]), is_answer=np.array([False, True, True, True, False])),
]


def test_answers_count_and_ties_go_to_lower_ids() -> None:
    assert commonest_tokens(TEXTS, vocab_size=12, count=2).tolist() == [5, 7]
    assert commonest_tokens(TEXTS, vocab_size=12, count=5).tolist() == [0, 1, 2, 5, 7]
    assert commonest_tokens(TEXTS, vocab_size=4 + 8, count=None).tolist() == list(range(12))
    assert commonest_tokens(TEXTS, vocab_size=12, count=12).tolist() == list(range(12))


def test_the_share_of_answers() -> None:
    assert share_of(np.array([5, 7]), TEXTS) == 5 / 6
    assert share_of(np.arange(12), TEXTS) == 1.0


@pytest.mark.parametrize("count", [-1, 0, 1, 13])
def test_a_count_out_of_range(count: int) -> None:
    with pytest.raises(UsageError, match=f"vocab-trim={count} is not allowed: the vocabulary has 12 tokens, give a number from 2 to 12"):
        check_count(count, 12)
    with pytest.raises(UsageError, match=f"vocab-trim={count}"):
        commonest_tokens(TEXTS, vocab_size=12, count=count)
