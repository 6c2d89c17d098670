"""Cases 7, 8, 10, 12 and 28: a request ends where plain decoding would end it, and the counts say so."""

import pytest

from compile_once import (
    ADAPTIVE,
    KnowingDrafter,
    compiled,
    greedy,
    model,
    prompt,
    recorded,
    reference,
    self_drafter,
    unrelated,
    with_eos,
    wrong,
)
from flexspec import SamplingParams
from tiny_models import greedy_reference

TREES = [[1, 1, 1, 1], [2, 2, 1], ADAPTIVE]


LENGTH = 33  # of the prompt; the first tokens of its text differ from each other


def ending(place: int) -> tuple[int, int]:
    """EOS ids such that the text ends at `place`: a token that does not come before, and the one there."""
    tokens = reference(LENGTH, 120)
    assert len(set(tokens[:6])) == 6
    return next(token for token in range(288) if token not in tokens), tokens[place]


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("place", [2, 3, 4])
def test_row_07_eos_in_mid_block_stops_at_the_first_of_two(place, tree, time_is_free):
    module = with_eos(model(), *ending(place))
    expected = greedy_reference(module, list(prompt(LENGTH)), 60)
    assert len(expected) == place + 1
    plain = compiled(module)
    for drafters in ([], [self_drafter(plain)], ["prune:1", "suffix"], ["ngram"]):
        llm = compiled(module, drafters, tree=tree)
        records = recorded(llm)
        output = greedy(llm, LENGTH, 60)
        assert output.token_ids == expected and output.finish_reason == "stop"
        assert output.stats.new_tokens == len(expected)
        if drafters and not isinstance(drafters[0], str) and tree != ADAPTIVE and place < len(tree):
            assert output.stats.steps == 2 and records[-1].path[-1] in records[-1].tree.parents, "no draft hangs from the end"
        free = greedy(llm, LENGTH, 60, ignore_eos=True)
        assert free.token_ids == reference(LENGTH, 120)[:60] and free.finish_reason == "length"


@pytest.mark.parametrize("tree", [[1] * 5, [2, 2, 1, 1, 1]])
def test_row_07_two_eos_ids_in_one_accepted_block_stop_at_the_earlier(tree):
    tokens = reference(LENGTH, 120)
    module = with_eos(model(), tokens[4], tokens[2])
    output = greedy(compiled(module, [self_drafter(compiled(module))], tree=tree), LENGTH, 60)
    assert output.token_ids == tokens[:3] and output.finish_reason == "stop" and output.stats.steps == 2


def six(root, follows, length):
    return [root, *follows[:6]], list(range(-1, 6))


def six_and_siblings(root, follows, length):
    """A wrong child before every right one."""
    tokens, parents = [root], [-1]
    for token in follows[:6]:
        tokens += [wrong(token), token]
        parents += [len(tokens) - 3] * 2
    return tokens, parents


@pytest.mark.parametrize(
    ("make_tree", "tree"),
    [(six, [1] * 6), (six_and_siblings, [2] * 6), (six_and_siblings, {"depth": 6, "branch": 2, "budget": 12})],
    ids=["chain", "wide", "adaptive"],
)
@pytest.mark.parametrize("max_tokens", [5, 50])
@pytest.mark.parametrize("by", ["eos", "stop_token_ids"])
def test_row_08_stop_at_token_3_with_6_accepted_at_once(by, max_tokens, make_tree, tree, time_is_free):
    tokens = reference(LENGTH, 120)
    drafter = KnowingDrafter([[*prompt(LENGTH), *tokens]], make_tree)
    other, end = ending(2)
    llm = compiled(with_eos(model(), other, end) if by == "eos" else model(), [drafter], tree=tree)
    output = greedy(llm, LENGTH, max_tokens, **({} if by == "eos" else {"stop_token_ids": [other, end]}))
    assert output.token_ids == tokens[:3] and output.finish_reason == "stop"
    assert output.stats.steps == 2 and output.stats.accepted == 2
    levels = 3 if max_tokens == 5 else 6  # no more than the cap leaves, the bonus token included
    assert output.stats.drafted == levels * (1 if make_tree is six else 2)


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 6, 7])
def test_row_10_the_model_as_its_own_draft_stops_exactly_at_the_cap(max_tokens, tree, time_is_free):
    module = model()
    llm = compiled(module, [module], tree=tree)
    output = greedy(llm, 9, max_tokens)
    assert output.token_ids == reference(9, 120)[:max_tokens] and output.finish_reason == "length"
    assert output.stats.new_tokens == max_tokens and output.stats.accepted <= max(max_tokens - 2, 0)
    assert output.stats.accepted > 0 or max_tokens < 3


@pytest.mark.parametrize("tree", [[1] * 5, [2, 2, 1, 1, 1], {"depth": 5, "branch": 3, "budget": 20}], ids=str)
@pytest.mark.parametrize("ssm", ["self", "prune:1", "unrelated"])
def test_row_12_the_draft_shortens_at_the_capacity(ssm, tree, time_is_free):
    module = model()
    ssms = [{"self": module, "unrelated": unrelated()}.get(ssm, ssm)]
    llm = compiled(module, ssms, tree=tree, max_len=64)
    records = recorded(llm)
    output = greedy(llm, 60, 100)
    assert output.token_ids == greedy_reference(module, list(prompt(60)), 4) and output.finish_reason == "length"
    length = 60
    for record in records:
        assert length + max(record.tree.depths()) <= 64 - (length > 60)
        length += len(record.token_ids)
    assert 0 < output.stats.drafted and (output.stats.accepted > 0 or ssm != "self")
    full = llm.generate([list(prompt(63)), list(prompt(62))], SamplingParams(max_tokens=9))
    assert [len(one.token_ids) for one in full] == [1, 2]
    assert [one.token_ids for one in full] == [greedy_reference(module, list(prompt(n)), 64 - n) for n in (63, 62)]


def test_row_12_a_model_at_the_end_of_its_own_positions():
    module = model("gpt2")
    llm = compiled(module, ["prune:1"], tree=[2, 2, 1], max_len=None)
    output = greedy(llm, 505, 100)
    assert output.token_ids == greedy_reference(module, list(prompt(505)), 7) and output.finish_reason == "length"


@pytest.mark.parametrize(
    ("ssms", "tree"),
    [([], []), (["ngram"], [2, 1, 1]), (["prune:1"], [2, 1, 1]), (["self"], [1] * 6), (["self"], [2] * 4), (["suffix", "self"], ADAPTIVE)],
    ids=str,
)
def test_row_28_counts_match_what_was_emitted(ssms, tree, time_is_free):
    own = self_drafter(compiled(model()))  # it accepts beyond the end
    llm = compiled(with_eos(model(), *ending(4)), [own if ssm == "self" else ssm for ssm in ssms], tree=tree)
    records = recorded(llm)
    prompts = [list(prompt(length, seed=length % LENGTH)) for length in (LENGTH, 40, 3, 1)]
    outputs = llm.generate(prompts, SamplingParams(max_tokens=40))
    ids = sorted({record.request_id for record in records})
    for request_id, output in zip(ids, outputs, strict=True):
        steps = [record for record in records if record.request_id == request_id]
        stats = output.stats
        assert stats.steps == len(steps) and stats.new_tokens == len(output.token_ids) == sum(len(step.token_ids) for step in steps)
        assert [token for step in steps for token in step.token_ids] == output.token_ids
        assert stats.drafted == sum(step.tree.num_drafted for step in steps)
        assert stats.accepted == sum(len(step.path) - 1 for step in steps) <= stats.new_tokens - 1
        assert 0 <= stats.acceptance_rate <= 1 and stats.tokens_per_step == stats.new_tokens / stats.steps
        assert all(seconds >= 0 for seconds in (stats.queued_s, stats.prefill_s, stats.decode_s, stats.draft_s, stats.verify_s))
        if not ssms:
            assert stats.drafted == stats.accepted == 0 and stats.acceptance_rate == 0 and stats.tokens_per_step == 1
    reasons = {output.finish_reason for output in outputs}
    assert "stop" in reasons and (not ssms or sum(output.stats.drafted for output in outputs) > 0)
