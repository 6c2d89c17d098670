"""Cases 15 and 16, and Hugging Face's own greedy text where it has the same parameters, on a compiled model with trees."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch

from compile_once import ADAPTIVE, compiled, greedy, model, prompt, self_drafter, with_eos
from flexspec import SamplingParams
from tiny_models import tiny

TREES = [[1, 1, 1, 1], [2, 2, 1], ADAPTIVE]
SSMS = ("self", "prune:1")
LENGTH = 33


def theirs(module: Any, length: int, n: int, **options: Any) -> list[int]:
    """What Hugging Face's greedy `generate` adds to `prompt(length)`."""
    ids = torch.tensor([list(prompt(length))])
    with torch.no_grad():
        text = module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, pad_token_id=0, **options)
    return text[0, length:].tolist()


@cache
def tied() -> Any:
    """A model that likes to repeat its last token: penalties matter within the block of one step."""
    return tiny("llama", tie_word_embeddings=True)


@cache
def ends() -> tuple[int, int]:
    """Two ends of text: one that would come as the 6th token, and one that comes as the 21st if the first may not come before."""
    first = greedy(compiled(tied()), LENGTH, 6, frequency_penalty=1.5).token_ids[5]
    text = greedy(compiled(with_eos(tied(), first)), LENGTH, 21, frequency_penalty=1.5, min_tokens=20).token_ids
    assert len(text) == 21 and text[20] not in text[:20] and first not in text
    return first, text[20]


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_row_15_frequency_penalty_and_min_tokens_with_the_model_as_its_own_draft(count: int, tree: Any, time_is_free: None) -> None:
    module = with_eos(tied(), *ends()[:count])
    params = {"frequency_penalty": 1.5, "min_tokens": 20}
    plain = compiled(module)
    expected = greedy(plain, LENGTH, 60, **params)
    assert not set(ends()[:count]) & set(expected.token_ids[:20]) and len(set(expected.token_ids)) > 15
    assert (len(expected.token_ids) == 21) == (count == 2), "the second end comes as soon as it may, in mid-block"
    assert len(greedy(plain, LENGTH, 60, frequency_penalty=1.5).token_ids) == 6
    assert expected.token_ids != greedy(plain, LENGTH, 60, min_tokens=20).token_ids
    outputs = {
        ssm: greedy(compiled(module, [ssm if ssm != "self" else self_drafter(plain)], tree=tree), LENGTH, 60, **params) for ssm in SSMS
    }
    for output in outputs.values():
        assert (output.token_ids, output.finish_reason) == (expected.token_ids, expected.finish_reason)
        assert 0 < output.stats.accepted <= output.stats.drafted
    assert outputs["self"].stats.steps <= 2 + len(expected.token_ids) // 3, "it drafts under the same penalties"
    assert outputs["prune:1"].stats.accepted < outputs["prune:1"].stats.drafted


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
