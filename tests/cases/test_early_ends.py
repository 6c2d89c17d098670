"""Cases 7 to 9 with stop tokens and a least number of tokens: text, ids and counts end together, and not before."""

import pytest

from flexspec.config import SamplingParams
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Output
from flexspec.tree_shape import PLAIN, Tree, TreeLimits, TreeSpec
from toy_model import ToyModel
from toy_tokenizer import letters

VOCAB = 24
PROMPT = [3, 1]
WIDE = TreeSpec(widths=(2, 2, 1))
TREES = [PLAIN, TreeSpec(widths=(1, 1, 1, 1, 1)), WIDE, TreeLimits(depth=5, branch=2, budget=10)]


@pytest.fixture(autouse=True)
def _all_trees_are_drafted(time_is_free: None) -> None:
    """Also adaptive ones."""


def toy(**changes) -> ToyModel:
    return ToyModel(vocab_size=VOCAB, seed=2, max_pass_tokens=64, **changes)


def complete(params: SamplingParams, tree: Tree = PLAIN, *, streaming: bool = False, eos=()) -> Output:
    """The completion; with `streaming` the chunks are checked to add up to it."""
    drafters = [SsmDrafter("half", toy(noise=0.2), max_requests=1, block_size=100), NgramDrafter()]
    engine = Engine(toy(), drafters=drafters, tree=tree, max_batch=1, max_len=80, eos_token_ids=eos, tokenizer=letters(VOCAB))
    if not streaming:
        return engine.generate([PROMPT], params)[0]
    chunks = list(engine.stream(PROMPT, params))
    output = chunks[-1].output
    assert "".join(chunk.text for chunk in chunks) == output.text
    assert [token for chunk in chunks for token in chunk.token_ids] == output.token_ids
    return output


WHOLE = complete(SamplingParams(max_tokens=40)).token_ids


def text_of(token_ids) -> str:
    return "".join(chr(ord("a") + token) for token in token_ids)


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("streaming", [False, True])
def test_a_stop_token_ends_the_text_wherever_it_falls_in_a_step(tree, streaming):  # cases 7, 8
    for place in range(2, 12):
        end = WHOLE.index(WHOLE[place])
        later = next(token for token in WHOLE[end + 1 :] if token not in WHOLE[: end + 1])
        params = SamplingParams(max_tokens=40, stop_token_ids=[later, WHOLE[end]])
        output = complete(params, tree, streaming=streaming)
        assert output.token_ids == WHOLE[: end + 1] and output.finish_reason == "stop"
        assert output.text == text_of(WHOLE[:end]) and output.stats.new_tokens == end + 1
    # The last of them: some drafts were right and some were not.
    assert 0 < output.stats.accepted < output.stats.drafted or tree == PLAIN


def test_stop_tokens_come_in_addition_to_the_end_of_sequence_and_survive_ignoring_it():
    places = sorted(WHOLE.index(token) for token in set(WHOLE))
    first, second = places[2], places[5]
    params = {"max_tokens": 40, "stop_token_ids": [WHOLE[second]]}
    assert complete(SamplingParams(**params), WIDE, eos=[WHOLE[first]]).token_ids == WHOLE[: first + 1]
    ignoring = complete(SamplingParams(**params, ignore_eos=True), WIDE, eos=[WHOLE[first]])
    assert ignoring.token_ids == WHOLE[: second + 1] and ignoring.finish_reason == "stop"


@pytest.mark.parametrize("tree", TREES, ids=str)
@pytest.mark.parametrize("streaming", [False, True])
def test_stop_strings_completed_before_min_tokens_do_not_count(tree, streaming):  # case 9
    text = text_of(WHOLE)
    repeated = max((text[start : start + 1] for start in range(20)), key=text.count)
    assert text.count(repeated) >= 3
    for stop in (repeated, text[4:6]):
        for least in (0, 1, 4, 5, 6, 7, 12, 40):
            ends = [count for count in range(max(least, 1), 41) if text[:count].endswith(stop)]
            output = complete(SamplingParams(max_tokens=40, stop=[stop], min_tokens=least), tree, streaming=streaming)
            count = ends[0] if ends else 40
            assert output.token_ids == WHOLE[:count], (stop, least)
            assert output.text == (text[: count - len(stop)] if ends else text)
            assert output.finish_reason == ("stop" if ends else "length")


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_ends_are_put_off_until_min_tokens_and_then_come_at_once_if_they_are_likeliest(tree):
    end = WHOLE.index(WHOLE[4])
    for kind in ({"eos": [WHOLE[end]]}, {"stop_token_ids": [WHOLE[end]]}):
        eos = kind.pop("eos", ())
        for least in (end, end + 1, end + 4):
            output = complete(SamplingParams(max_tokens=40, min_tokens=least, **kind), tree, eos=eos)
            if least == end:
                assert output.token_ids == WHOLE[: end + 1]
            else:
                assert output.token_ids[:end] == WHOLE[:end] and WHOLE[end] not in output.token_ids[:least]
                assert len(output.token_ids) > least


def test_min_tokens_gives_way_to_the_capacity():
    output = complete(SamplingParams(max_tokens=1000, min_tokens=900), WIDE, eos=[WHOLE[0]])
    assert len(PROMPT) + len(output.token_ids) == 80 and output.finish_reason == "length"
