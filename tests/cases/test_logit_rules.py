"""Cases 15 and 16, and Hugging Face's own greedy text where it has the same parameters, on a compiled model with trees."""

from collections import Counter
from typing import Any

import pytest
import torch

from compile_once import ADAPTIVE, compiled, greedy, model, prompt, self_drafter, with_eos
from flexspec import SamplingParams

TREES = [[1, 1, 1, 1], [2, 2, 1], ADAPTIVE]
LENGTH = 33


def theirs(module: Any, length: int, n: int, **options: Any) -> list[int]:
    """What Hugging Face's greedy `generate` adds to `prompt(length)`."""
    ids = torch.tensor([list(prompt(length))])
    with torch.no_grad():
        text = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, pad_token_id=0, **options)
    return text[0, length:].tolist()


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_row_15_frequency_penalty_and_min_tokens_with_the_model_as_its_own_draft(tree: Any, time_is_free: None) -> None:
    free = greedy(compiled(model()), LENGTH, 40, frequency_penalty=1.5).token_ids
    module = with_eos(model(), free[5], free[30])
    params = {"frequency_penalty": 1.5, "min_tokens": 20}
    plain = compiled(module)
    expected = greedy(plain, LENGTH, 40, **params)
    assert 20 < len(expected.token_ids) <= 40 and free[5] not in expected.token_ids[:20]
    assert greedy(plain, LENGTH, 40, frequency_penalty=1.5).token_ids == free[:6]
    assert expected.token_ids != greedy(plain, LENGTH, 40, min_tokens=20).token_ids
    output = greedy(compiled(module, [self_drafter(plain)], tree=tree), LENGTH, 40, **params)
    assert (output.token_ids, output.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert output.stats.steps <= 2 + len(output.token_ids) // 3, "it drafts under the same penalties"
    imperfect = greedy(compiled(module, ["prune:1"], tree=tree), LENGTH, 40, **params)
    assert (imperfect.token_ids, imperfect.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert 0 < imperfect.stats.accepted < imperfect.stats.drafted


@pytest.mark.parametrize(("ssms", "tree"), [(["prune:1"], [2, 2, 1]), (["prune:1", "ngram"], [2, 2, 1]), (["prune:1", "suffix"], ADAPTIVE)])
def test_row_16_a_bias_of_minus_100_on_a_likely_token(ssms: list[str], tree: Any, time_is_free: None) -> None:
    plain = compiled(model())
    likely, times = Counter(greedy(plain, LENGTH, 50).token_ids).most_common(1)[0]
    assert times > 1
    params = {"logit_bias": {likely: -100.0}}
    expected = greedy(plain, LENGTH, 50, **params).token_ids
    output = greedy(compiled(model(), ssms, tree=tree), LENGTH, 50, **params)
    assert likely not in expected and output.token_ids == expected and len(expected) == 50
    assert 0 < output.stats.accepted < output.stats.drafted


@pytest.mark.parametrize(
    ("params", "options"),
    [
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"logit_bias": {3: 2.5, 8: -4.0}}, {"sequence_bias": [[[3], 2.5], [[8], -4.0]]}),
        ({"min_tokens": 20}, {"min_new_tokens": 20}),
        ({"min_tokens": 20, "repetition_penalty": 0.9}, {"min_new_tokens": 20, "repetition_penalty": 0.9}),
    ],
)
def test_greedy_text_is_that_of_hugging_face(params: dict[str, Any], options: dict[str, Any]) -> None:
    free = theirs(model(), LENGTH, 40)
    module = with_eos(model(), free[5]) if "min_tokens" in params else model()
    expected = theirs(module, LENGTH, 40, **options)
    assert expected != theirs(module, LENGTH, 40)
    for ssms in ([], ["prune:1", "ngram"]):
        output = compiled(module, ssms, tree=[2, 2, 1]).generate(list(prompt(LENGTH)), SamplingParams(max_tokens=40, **params))[0]
        assert output.token_ids == expected
    assert 0 < output.stats.accepted < output.stats.drafted
