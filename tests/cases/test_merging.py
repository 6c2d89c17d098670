"""Case 22: two draft models at once, whose proposals overlap or have nothing in common."""

from functools import cache

import pytest
import torch

from compile_once import ADAPTIVE, compiled, model, prompt, recorded, self_drafter, with_eos
from flexspec import LLM, SamplingParams
from flexspec.runtime.token_tree import TokenTree
from tiny_models import tiny

NEW = 60
TREE = [2, 2, 1]


@cache
def half(remainder: int):
    """The model itself, except that it knows even or odd tokens only: the others get a logit of 0, and there are always larger ones."""
    module = tiny("llama")
    with torch.no_grad():
        module.lm_head.weight[1 - remainder :: 2] = 0.0
    return module


def halves():
    return [half(0), half(1)]


def overlapping():
    return ["prune:1", half(0)]


def prompts():
    return [list(prompt(length, seed=length)) for length in (1, 9, 33)]


def texts(llm: LLM, **params) -> list[list[int]]:
    return [output.token_ids for output in llm.generate(prompts(), SamplingParams(max_tokens=NEW, **params))]


def nodes_of(name: str, tree: TokenTree) -> set[int]:
    return {node for node, origins in enumerate(tree.origins) if name in {origin.drafter for origin in origins}}


@pytest.mark.parametrize("tree", [TREE, ADAPTIVE], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("drafters", [halves, overlapping])
def test_row_22_trees_merge_and_duplicates_fold(drafters, temperature, tree, time_is_free):
    expected = texts(compiled(model()), temperature=temperature, seed=3)
    llm = compiled(model(), drafters(), tree=tree)
    records = recorded(llm)
    assert texts(llm, temperature=temperature, seed=3) == expected
    drafted = [record for record in records if record.tree.num_drafted]
    accepted = [len(record.path) - 1 for record in drafted]
    assert 0 < sum(accepted) < sum(record.tree.num_drafted for record in drafted) and max(accepted) > 1
    names = {origin.drafter for record in drafted for origins in record.tree.origins for origin in origins}
    assert len(names) == 2
    shared = 0
    for record in drafted:
        merged = record.tree
        assert not merged.has_twins()
        first, second = (nodes_of(name, merged) for name in sorted(names))
        assert first | second == set(range(1, len(merged.tokens))), "a node of nobody's"
        shared += len(first & second)
        for own in (first, second):
            assert all(merged.parents[node] in own | {0} for node in own), "a node hangs from one that its drafter did not propose"
            if tree == TREE and max(merged.depths()) == 3:
                assert len(own) == 2 + 4 + 4, "a drafter's tree is not whole"
    assert (shared > 20) if drafters is overlapping else (temperature > 0 or shared == 0)


def test_row_22_a_draft_model_given_twice_adds_nothing():
    once, twice = ([self_drafter(compiled(model()), name=name) for name in names] for names in (("a",), ("a", "b")))
    trees = []
    for drafters in (once, twice):
        llm = compiled(model(), drafters, tree=TREE)
        records = recorded(llm)
        texts(llm)
        trees.append([(record.tree.tokens, record.tree.parents, record.path) for record in records])
    assert trees[0] == trees[1]


@pytest.mark.parametrize("verifier", ["mss", "without_replacement", "point_mass", "traversal"])
@pytest.mark.parametrize("drafters", [halves, overlapping])
def test_row_22_merged_drafts_under_every_verifier(drafters, verifier):
    """Greedy text is the same under all of them; sampled text keeps to what is likely enough, and repeats with its seed."""
    llm = compiled(model(), drafters(), tree=TREE, verifier=verifier)
    assert texts(llm) == texts(compiled(model()))
    outputs = llm.generate(prompts(), SamplingParams(max_tokens=NEW, temperature=0.9, top_k=3, seed=5))
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)
    assert texts(llm, temperature=0.9, top_k=3, seed=5) == [output.token_ids for output in outputs]
    for output in outputs:
        ids = torch.tensor([[*output.prompt_token_ids, *output.token_ids]])
        with torch.no_grad():
            top = model()(ids).logits[0, len(output.prompt_token_ids) - 1 : -1].topk(3).indices
        assert all(token in likeliest for token, likeliest in zip(output.token_ids, top.tolist(), strict=True))


@pytest.mark.parametrize("tree", [TREE, ADAPTIVE], ids=str)
def test_row_22_two_halves_of_the_vocabulary_accept_more_than_one(tree, time_is_free):
    def steps(drafters):
        outputs = compiled(model(), drafters, tree=tree).generate(prompts(), SamplingParams(max_tokens=NEW))
        return sum(output.stats.steps for output in outputs)

    assert steps(halves()) < 0.9 * min(steps([half(0)]), steps([half(1)]))


def test_row_22_an_end_that_only_the_second_drafter_proposes():
    expected = texts(compiled(model()))[1]
    place = next(place for place in range(4, NEW) if expected[place] % 2 and expected[place] not in expected[:place])
    module = with_eos(model(), expected[place])
    output = compiled(module, halves(), tree=TREE).generate(prompts()[1], SamplingParams(max_tokens=NEW))[0]
    assert output.token_ids == expected[: place + 1] and output.finish_reason == "stop"
