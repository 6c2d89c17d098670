"""Cases 1, 5, 20 and 21, and every family: greedy text is that of Hugging Face, whatever drafts and trees."""

from itertools import accumulate

import pytest
import torch

from compile_once import ADAPTIVE, compiled, greedy, logits_after, model, prompt, recorded, reference, unrelated
from flexspec import SamplingParams
from flexspec.models.shared_copy import shared_copy
from tiny_models import FAMILIES, greedy_reference

LENGTHS = {1: 120, 9: 30, 65: 30, 200: 30}  # of prompts, and new tokens
DRAFTERS = {
    "plain": ([], None),
    "unrelated": (["unrelated"], [3, 1, 1]),
    "pruned": (["prune:1"], [2, 2, 1]),
    "self": (["self"], [2, 1, 1]),
    "ngram": (["ngram"], [1] * 8),
    "several": (["unrelated", "prune:1", "ngram"], [2, 2]),
    "adaptive": (["prune:1", "suffix", "unrelated"], ADAPTIVE),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_row_01_every_family_writes_what_hugging_face_writes(family, time_is_free):
    module = model(family)
    drafters = {"unrelated": unrelated(), "self": module}
    params = [SamplingParams(max_tokens=n) for n in LENGTHS.values()]
    for name, (ssms, tree) in DRAFTERS.items():
        llm = compiled(module, [drafters.get(ssm, ssm) for ssm in ssms], tree=tree)
        outputs = llm.generate([list(prompt(length)) for length in LENGTHS], params)
        for (length, n), output in zip(LENGTHS.items(), outputs, strict=True):
            assert output.token_ids == reference(length, n, family), f"{family}, {name}, prompt of {length}"
            assert output.finish_reason == "length" and output.stats.new_tokens == n
        drafted = sum(output.stats.drafted for output in outputs)
        accepted = sum(output.stats.accepted for output in outputs)
        assert 0 < accepted < drafted or name in ("plain", "unrelated"), f"{family}, {name}: {accepted} of {drafted} accepted"
        assert (drafted == 0) == (name == "plain")


@pytest.mark.parametrize("tree", [[4], [1, 1, 1], [3, 1, 2], ADAPTIVE], ids=str)
@pytest.mark.parametrize("length", [1, 200])
def test_row_01_an_unrelated_draft_model_changes_nothing_in_200_tokens(length, tree, time_is_free):
    llm = compiled(model(), [unrelated()], tree=tree)
    output = greedy(llm, length, 200)
    assert output.token_ids == reference(length, 200)
    assert 0 <= output.stats.accepted < output.stats.drafted
    assert output.stats.accepted > 0 or tree in ([1, 1, 1], ADAPTIVE), "static trees with siblings meet the text now and then"


@pytest.mark.parametrize("tree", [[4], [1, 1, 1], [1]])
def test_row_05_single_levels_and_chains_work(tree):
    llm = compiled(model(), ["prune:1"], tree=tree)
    records = recorded(llm)
    output = greedy(llm, 9, 120)
    assert output.token_ids == reference(9, 120)
    assert 0 < output.stats.accepted < output.stats.drafted
    assert max(record.tree.num_drafted for record in records) == len(tree) * tree[0]
    assert all(record.tree.is_chain() for record in records) == (tree[0] == 1)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_row_05_adaptive_trees_of_width_1_are_the_static_chains(temperature, time_is_free):
    """Up to where the draft model is so unsure of a path that adaptive trees go no further."""
    texts, chains = [], []
    for tree in ([1, 1, 1], {"depth": 3, "branch": 1, "budget": 3}):
        llm = compiled(model(), ["prune:1"], tree=tree)
        records = recorded(llm)
        texts.append(greedy(llm, 9, 60, temperature=temperature, seed=1).token_ids)
        assert all(record.tree.is_chain() for record in records)
        ends = accumulate(len(record.token_ids) for record in records)
        chains.append({end - len(record.token_ids): list(record.tree.tokens) for end, record in zip(ends, records, strict=True)})
    assert texts[0] == texts[1]
    static, adaptive = chains
    shared = static.keys() & adaptive.keys()
    assert all(static[place][: len(adaptive[place])] == adaptive[place] for place in shared)
    assert sum(len(adaptive[place]) == 4 for place in shared) > 5


@pytest.mark.parametrize(("native", "tree"), [(True, [1, 1, 1, 1]), (True, [2, 2, 1, 1]), (True, ADAPTIVE), (False, [2, 2, 1])])
def test_row_20_a_sliding_window_holds_in_chains_and_trees(native, tree, time_is_free):
    module, ids = model("mistral"), list(prompt(9))
    assert module.config.sliding_window == 8
    llm = compiled(module, ["prune:1"], tree=tree, native=native)
    output = greedy(llm, 9, 40)
    assert output.token_ids == greedy(compiled(module, native=native), 9, 40).token_ids == reference(9, 40, "mistral")
    assert 0 < output.stats.accepted < output.stats.drafted
    wide = shared_copy(module)
    wide.config.sliding_window = 16
    text = torch.tensor([ids + output.token_ids])
    with torch.no_grad():
        assert (wide(text).logits - module(text).logits).abs().max() > 1e-3
    assert greedy_reference(wide, ids, 40) != output.token_ids


@pytest.mark.parametrize("tree", [[3, 1, 1], [3, 3], ADAPTIVE | {"branch": 3}], ids=str)
def test_row_21_learned_positions_of_opt_in_trees_of_width_3(tree, time_is_free):
    """Position p has row p + 2 of the table, in trees too, up to the last row."""
    module = model("opt")
    llm = compiled(module, ["prune:1", "ngram"], tree=tree, max_len=None)
    records = recorded(llm)
    outputs = llm.generate([list(prompt(length)) for length in (1, 65, 500)], SamplingParams(max_tokens=30))
    assert [output.token_ids for output in outputs] == [reference(length, n, "opt") for length, n in ((1, 30), (65, 30), (500, 12))]
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)
    assert max(record.tree.parents.count(0) for record in records) >= 3
    assert any(list(record.path) != list(range(len(record.path))) for record in records), "no accepted node was out of place"
    shifted = shared_copy(module)
    shifted.model.decoder.embed_positions.offset = 1
    ids = list(prompt(65))
    assert (logits_after(shifted, ids) - logits_after(module, ids)).abs().max() > 1e-3


def test_without_native_kernels_trees_write_the_same():
    llm = compiled(model(), ["prune:1", "ngram"], tree=[2, 2, 1], native=False)
    assert llm.plan.llm.model.lowering.target == "cpu-torch"
    output = greedy(llm, 9, 120)
    assert output.token_ids == reference(9, 120) and 0 < output.stats.accepted < output.stats.drafted
