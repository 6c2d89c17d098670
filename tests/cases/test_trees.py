"""Cases 2, 4, 6 and 33: what a tree accepts, and what it leaves in the cache."""

import numpy as np
import pytest
import torch

from compile_once import ADAPTIVE, KnowingDrafter, compiled, greedy, model, prompt, recorded, reference, self_drafter, wrong
from flexspec import LLM, SamplingParams
from flexspec.codegen.batch import chain_batch
from flexspec.codegen.kv_storage import KVStorage
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import StepRecord
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import parse_tree


def knowing(make_tree, length=9, n=120):
    return KnowingDrafter([[*prompt(length), *reference(length, n)]], make_tree)


@pytest.mark.parametrize("tree", [[1], [3]])
def test_row_02_a_draft_that_is_always_wrong_is_never_accepted(tree, time_is_free):
    def all_wrong(root, follows, length):
        true = follows[0] if follows else root
        return [root, *(true + 1 + child - 288 * (true + 1 + child >= 288) for child in range(tree[0]))], [-1, *[0] * tree[0]]

    llm = compiled(model(), [knowing(all_wrong)], tree=tree)
    output = greedy(llm, 9, 40)
    assert output.token_ids == reference(9, 120)[:40] == greedy(compiled(model()), 9, 40).token_ids
    assert output.stats.accepted == 0 and output.stats.drafted == 38 * tree[0]  # all steps but the first and the last draft
    assert output.stats.steps == 40 and output.stats.acceptance_rate == 0
    adaptive = compiled(model(), [knowing(all_wrong)], tree={"depth": 1, "branch": tree[0], "budget": tree[0]})
    output = greedy(adaptive, 9, 40)
    assert output.token_ids == reference(9, 120)[:40] and output.stats.accepted == 0 < output.stats.drafted


def test_row_04_one_more_sibling_at_the_root_never_accepts_less():
    """Every prefix of a text is a request, so that both trees face the same states."""
    text = [*prompt(9), *reference(9, 120)]

    def chain(root, follows, length):
        first = follows[0] if length % 3 else wrong(follows[0])
        return [root, first, follows[1] if length % 2 else wrong(follows[1])], [-1, 0, 1]

    def with_sibling(root, follows, length):
        tokens, parents = chain(root, follows, length)
        sibling = follows[0] if length % 3 == 0 else (follows[0] + 7) % 288
        return [*tokens, sibling], [*parents, 0]

    accepted = []
    for make_tree, tree in ((chain, [1, 1]), (with_sibling, [2, 1])):
        llm = compiled(model(), [KnowingDrafter([text], make_tree)], tree=tree)
        records = recorded(llm)
        outputs = llm.generate([text[:length] for length in range(20, 50)], SamplingParams(max_tokens=4))
        assert [output.token_ids for output in outputs] == [text[length : length + 4] for length in range(20, 50)]
        accepted.append(accepted_first(records))
    pairs = list(zip(*accepted, strict=True))
    assert len(pairs) == 30 and {less for less, _ in pairs} == {0, 1, 2}
    assert all(less <= more for less, more in pairs) and any(less < more for less, more in pairs)


def accepted_first(records: list[StepRecord]) -> list[int]:
    """For each request, how many drafts its first tree had accepted; at that step it is in the same state whatever the drafter."""
    first: dict[int, int] = {}
    for record in records:
        if record.tree.num_drafted:
            first.setdefault(record.request_id, len(record.path) - 1)
    return [first[request_id] for request_id in sorted(first)]


def test_row_04_a_wider_tree_of_an_ssm_never_accepts_less():
    text = [*prompt(9), *reference(9, 120)]
    accepted = []
    for tree in ([1, 1], [2, 1], [4, 1]):
        llm = compiled(model(), ["prune:1"], tree=tree)
        records = recorded(llm)
        llm.generate([text[:length] for length in range(20, 60)], SamplingParams(max_tokens=4))
        accepted.append(accepted_first(records))
    assert all(narrow <= wide <= wider for narrow, wide, wider in zip(*accepted, strict=True))
    assert sum(accepted[0]) < sum(accepted[1]) < sum(accepted[2])


def check_cache(llm: LLM, texts: dict[int, list[int]]) -> int:
    """Compare the cache of all running requests with a linear prefill of their texts; how many tokens were compared."""
    lowered, compared = llm.plan.llm.model, 0
    for request_id in llm.engine.cache.request_ids:
        slots = llm.engine.cache.physical_slots(request_id)
        ids = texts[request_id][: len(slots)]
        linear = KVStorage(lowered.kv_shape, num_blocks=1, block_size=len(ids))
        lowered.forward(chain_batch(np.array(ids)), linear)
        for ours, expected in ((llm.engine.cache.storage.keys, linear.keys), (llm.engine.cache.storage.values, linear.values)):
            if lowered.lowering.target == "cpu-native":
                assert torch.equal(ours[:, slots], expected)
            else:
                torch.testing.assert_close(ours[:, slots], expected, rtol=1e-4, atol=1e-5)
        compared += len(ids)
    return compared


def run_checking_caches(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    texts = {llm.engine.add(ids, params): list(ids) for ids in prompts}
    compared = 0
    while llm.engine.has_work:
        for chunk in llm.engine.step():
            texts[chunk.request_id] += chunk.token_ids
        compared += check_cache(llm, texts)
    assert compared > 0 and not llm.engine.cache.request_ids
    return [text[len(ids) :] for text, ids in zip(texts.values(), prompts, strict=True)]


@pytest.mark.parametrize("native", [True, False])
def test_row_06_nodes_0_2_3_accepted_with_1_rejected_between(native):
    def gap(root, follows, length):
        return [root, wrong(follows[0]), follows[0], follows[1]], [-1, 0, 0, 2]

    llm = compiled(model(), [knowing(gap)], tree=[2, 2], native=native)
    records = recorded(llm)
    assert run_checking_caches(llm, [list(prompt(9))], SamplingParams(max_tokens=30)) == [reference(9, 120)[:30]]
    paths = [list(record.path) for record in records]
    assert paths.count([0, 2, 3]) >= 8


@pytest.mark.parametrize(("family", "tree"), [("mistral", [3, 2, 1]), ("opt", [3, 2, 1]), ("llama", ADAPTIVE)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_row_06_the_cache_is_a_linear_prefill_after_every_step(temperature, family, tree, time_is_free):
    llm = compiled(model(family), ["prune:1", "suffix"], tree=tree)
    records = recorded(llm)
    prompts = [list(prompt(length, seed=length)) for length in (1, 9, 33)]
    params = SamplingParams(max_tokens=25, temperature=temperature, seed=1)
    texts = run_checking_caches(llm, prompts, params)
    assert texts == [output.token_ids for output in compiled(model(family)).generate(prompts, params)]
    assert any(list(record.path) != list(range(len(record.path))) for record in records), "no accepted node was out of place"


NEW = 200
Tree = list[int] | dict[str, int]
TREES: dict[str, Tree] = {"chain": [1, 1, 1, 1], "tree": [2, 2, 1], "adaptive": ADAPTIVE}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_33_the_model_as_its_own_draft_is_accepted_to_the_full_depth(temperature, tree, time_is_free):
    check_full_depth(compiled(model(), [self_drafter(compiled(model()))], tree=TREES[tree]), TREES[tree], temperature)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_33_a_merged_lookup_draft_does_not_disturb_the_draft_models_cache(temperature, tree, time_is_free):
    """Lookup drafts are accepted where the draft model proposed something else, and text comes that it did not draft."""
    plain = compiled(model())
    params = SamplingParams(max_tokens=NEW, temperature=temperature, seed=3)
    texts = [[*output.prompt_token_ids, *output.token_ids] for output in plain.generate(ragged(), params)]
    for order in ("first", "last"):
        # Every third time it knows a longer continuation than the model's own tree holds.
        other = KnowingDrafter(texts, lambda root, follows, length: longer(root, follows) if length % 3 == 0 else ([root], [-1]))
        drafters = [other, self_drafter(plain)] if order == "first" else [self_drafter(plain), other]
        check_full_depth(compiled(model(), drafters, tree=TREES[tree]), TREES[tree], temperature)


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("lookup", ["ngram", "suffix"])
def test_row_33_after_drafts_of_lookup_alone(lookup, tree, time_is_free):
    """What lookup drafted at every other text is fed to the draft model later, and it is right again at once."""
    plain = compiled(model())
    prompts = [ids * 2 for ids in ragged()]
    expected = [output.token_ids for output in plain.generate(prompts, SamplingParams(max_tokens=NEW))]
    own = Sometimes(self_drafter(plain), lambda length: length % 3)
    llm = compiled(model(), [lookup, own], tree=TREES[tree])
    records = recorded(llm)
    assert [output.token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=NEW))] == expected
    assert_full_depth(records, TREES[tree])
    by_lookup = [record for record in records if record.tree.num_drafted and not proposed_by(own.name, record.tree)]
    assert sum(len(record.path) > 1 for record in by_lookup) >= 3, "lookup alone was hardly ever accepted"


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_33_after_preemption(temperature, tree, time_is_free, monkeypatch):
    """Its text is computed anew in both caches, and tokens stay what they are where requests have a block each."""
    params = [SamplingParams(max_tokens=NEW // 2, temperature=temperature, seed=3, logprobs=1)] * 4
    prompts = [*ragged(), list(prompt(9))]
    expected = compiled(model()).generate(prompts, params)
    plain = compiled(model())
    scarce = {"block_size": 16, "num_blocks": 18}
    monkeypatch.setattr("flexspec.api.engine.Engine", lambda model, **options: Engine(model, **(options | scarce)))
    llm = compiled(model(), [self_drafter(plain)], tree=TREES[tree], max_len=240)
    records = recorded(llm)
    outputs = llm.generate(prompts, params)
    assert llm.engine.statistics().preemptions >= 2
    tolerance = 0.0 if tree == "chain" else 1e-3  # what a pass computes does not depend on what shares it
    for output, other in zip(outputs, expected, strict=True):
        assert output.token_ids == other.token_ids and len(output.logprobs) == NEW // 2
        assert np.allclose(
            [entry.logprob for entry in output.logprobs], [entry.logprob for entry in other.logprobs], rtol=0, atol=tolerance
        )
    assert all(len(record.path) - 1 == max(record.tree.depths()) for record in records)
    assert sum(len(record.path) > max_depth(TREES[tree]) for record in records) > len(records) / 2, (
        "trees are small only where blocks are scarce"
    )


class Sometimes:
    """A drafter that is asked only for texts of some lengths."""

    def __init__(self, drafter, when):
        self.name = drafter.name
        self._drafter, self._when = drafter, when

    def propose(self, requests):
        asked = [request for request in requests if self._when(len(request.tokens))]
        trees = iter(self._drafter.propose(asked))
        return [next(trees) if request in asked else TokenTree.root(request.tokens[-1]) for request in requests]

    def release(self, request_id):
        self._drafter.release(request_id)


def longer(root, follows):
    tokens = [root, *follows[:6]]
    return tokens, [-1, *range(len(tokens) - 1)]


def ragged():
    return [list(prompt(length, seed=length)) for length in (1, 37, 120)]


def check_full_depth(llm: LLM, tree: Tree, temperature: float) -> None:
    records = recorded(llm)
    outputs = llm.generate(ragged(), SamplingParams(max_tokens=NEW, temperature=temperature, seed=3))
    assert_full_depth(records, tree)
    assert all(len(output.token_ids) == NEW for output in outputs)
    if temperature == 0:
        # From one state, then from states that the bonus tokens of earlier steps led to; adaptive trees learn how deep to be.
        steps = 1 + -(-(NEW - 1) // (max_depth(tree) + 1)) + (6 if tree == ADAPTIVE else 0)
        assert all(output.stats.steps <= steps for output in outputs)


def assert_full_depth(records: list[StepRecord], tree: Tree) -> None:
    """Wherever the model drafted for itself, that was accepted as deep as the tree was allowed to be."""
    left = {record.request_id: NEW for record in records}
    for record in records:
        remaining = left[record.request_id]
        left[record.request_id] -= len(record.token_ids)
        if not proposed_by("self", record.tree):
            continue
        levels = len(record.path) - 1
        assert levels >= min(max_depth(tree), remaining - 1) or tree == ADAPTIVE, f"{levels} levels, {remaining} tokens left"
        last, origins = record.path[-1], record.tree.origins
        missed = [
            node for node, parent in enumerate(record.tree.parents) if parent == last and ("self", 0) in {o[:2] for o in origins[node]}
        ]
        assert not missed, f"the best child after {levels} levels was rejected"
    assert set(left.values()) == {0}


def proposed_by(name: str, tree: TokenTree) -> bool:
    """Whether a drafter has part in a tree."""
    return any(origin.drafter == name for origins in tree.origins or () for origin in origins)


def max_depth(tree: Tree) -> int:
    return parse_tree(tree).depth


@pytest.mark.parametrize("others", ["none", "first", "last"])
@pytest.mark.parametrize("tree", [[2, 2, 1], [1, 1, 1, 1]], ids=str)
def test_row_33_text_that_a_draft_model_did_not_draft_leaves_its_cache_right(tree, others):
    """Bonus tokens, and drafts of another's in the place of its own: what it guesses next is what a fresh one guesses."""
    right = knowing(lambda root, follows, length: longer(root, follows[:2]), length=33)
    llm = compiled(model(), {"none": ["prune:1"], "first": [right, "prune:1"], "last": ["prune:1", right]}[others], tree=tree)
    records = recorded(llm)
    output = greedy(llm, 33, 60)
    assert output.token_ids == reference(33, 120)[:60] and 0 < output.stats.accepted < output.stats.drafted
    text, compared, replaced = list(prompt(33)), 0, 0
    for record in records:
        guesses = paths_of("prune:1", record.tree)
        if len(guesses) == parse_tree(tree).num_nodes:
            replaced += len(record.path) > 2 and tuple(record.token_ids[:1]) not in guesses
            fresh = compiled(model(), ["prune:1"], tree=tree)
            seen = recorded(fresh)
            fresh.generate(text[:-1], SamplingParams(max_tokens=len(tree) + 2))
            # The fresh request emits the last token of the text by itself and then drafts from the same state.
            if seen[0].token_ids == text[-1:]:
                assert paths_of("prune:1", seen[1].tree) == guesses
                compared += 1
        text += record.token_ids
    assert compared > 10 and (replaced > 3 or others == "none")


def paths_of(name: str, tree: TokenTree) -> set[tuple[int, ...]]:
    """The root paths of what a drafter proposed, the root left out."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, len(tree.tokens)):
        paths.append((*paths[tree.parents[node]], tree.tokens[node]))
    return {path for path, origins in zip(paths, tree.origins, strict=False) if any(origin.drafter == name for origin in origins)}
