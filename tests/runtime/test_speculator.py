import json
import warnings

import numpy as np
import pytest
import torch

from engine_reference import plain
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.tree_shape import TreeSpec
from toy_drafter import FixedDrafter, ToyDrafter
from toy_model import ToyModel

PARAMS = SamplingParams(max_tokens=20)


def toy():
    return ToyModel(vocab_size=24, seed=2, max_pass_tokens=32)


def generate(*drafters, widths=(2, 1), params=PARAMS, **options):
    engine = Engine(toy(), drafters=drafters, tree=TreeSpec(widths=widths), max_len=64, **options)
    output = engine.generate([[3]], params)[0]
    assert output.token_ids == plain(toy(), [3], params)
    return output


def test_a_root_alone_is_a_plain_step_without_a_warning():  # cases 28, 30
    output = generate(FixedDrafter(lambda text: TokenTree.root(text[-1])))
    assert output.stats.drafted == 0 and output.stats.acceptance_rate == 0 and output.stats.steps == 20


class Returns(FixedDrafter):
    def __init__(self, result):
        super().__init__(None)
        self.result = result

    def propose(self, requests):
        return self.result


GARBAGE = [
    lambda root: {"tokens": [root, None], "parents": [-1, 0]},
    lambda root: {"tokens": [root, "a"], "parents": [-1, 0]},
    lambda root: {"tokens": [root, 1.5], "parents": [-1, 0]},
    lambda root: {"tokens": None, "parents": [-1, 0]},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0.0]},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "grades": 5},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "grades": [0, -1]},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "grades": [0, 0.5]},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "grades": [0, []]},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "draws": None},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "draws": [1]},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "draws": {0: [3]}},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "draws": {99: []}},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "draws": {0: [Draw(node="a", q=None)]}},
    lambda root: {"tokens": [root, 1], "parents": [-1, 0], "draws": {0: [Draw(node=1, q="q")]}},
]


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (Returns([]), "0 trees for 1 requests"),
        (Returns(None), "None for 1 requests"),
        (Returns([None]), "does not continue"),
        (FixedDrafter(lambda text: TokenTree.root(text[-1] + 1)), "does not continue"),
        (FixedDrafter(lambda text: TokenTree(tokens=[text[-1], 24], parents=[-1, 0])), "does not continue"),
        (FixedDrafter(lambda text: TokenTree(tokens=[text[-1], 1], parents=[-1, 1])), "does not continue"),
        *((FixedDrafter(lambda text, parts=parts: TokenTree(**parts(text[-1]))), "does not continue") for parts in GARBAGE),
    ],
)
def test_a_faulty_drafter_costs_speed_and_one_warning(drafter, message):  # case 30
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        output = generate(drafter)
    assert len(caught) == 1 and message in str(caught[0].message)
    assert output.stats.drafted == 0


@pytest.mark.parametrize("fault", [[], None, [None], [TokenTree(tokens=[23, 1], parents=[-1, 0])]])
def test_a_faulty_drafter_among_several_takes_nothing_from_the_others(fault):
    faulty = Returns(fault)
    faulty.name = "faulty"
    with pytest.warns(RuntimeWarning, match="faulty") as caught:
        output = generate(faulty, ToyDrafter(toy()))
    assert len(caught) == 1 and output.stats.accepted > 0


def test_trees_beyond_the_spec_are_clipped():
    def deep(text):
        tokens = [text[-1]]
        for _ in range(40):
            tokens.append(int(toy().logits_of([*text, *tokens[1:]]).argmax()))
        return TokenTree(tokens=tokens, parents=list(range(-1, 40)))

    output = generate(FixedDrafter(deep), widths=(1, 1))
    assert output.stats.steps == 1 + -(-19 // 3)


def test_drafts_are_asked_for_only_where_they_can_be_emitted():
    drafter = ToyDrafter(toy())
    generate(drafter, widths=(1, 1, 1), params=SamplingParams(max_tokens=7))
    assert [request.spec.depth for request in drafter.requests] == [3, 1]
    assert drafter.released == [0]


def test_a_small_pass_shortens_the_trees():
    drafter = ToyDrafter(toy())
    generate(drafter, widths=(2, 2), pass_tokens=8, max_batch=1)
    assert {request.spec.widths for request in drafter.requests} == {(2, 2)}
    drafter = ToyDrafter(toy())
    generate(drafter, widths=(2, 2), pass_tokens=6, max_batch=1)
    assert {request.spec.widths for request in drafter.requests} == {(2,)}


@pytest.mark.parametrize(
    ("verifier", "temperature", "draws"),
    [
        ("mss", 1.0, Children.DRAWN),
        ("mss", 0.0, Children.ANY),
        ("coupled", 1.0, Children.ANY),
        ("auto", 0.0, Children.ANY),
    ],
)
def test_drawn_children_are_asked_for_where_the_verifier_needs_them(verifier, temperature, draws):
    drafter = ToyDrafter(toy())
    engine = Engine(toy(), drafters=[drafter], tree=TreeSpec(widths=(2, 1)), max_len=64, verifier_name=verifier)
    engine.generate([[3]], SamplingParams(max_tokens=10, temperature=temperature, seed=1))
    assert {request.children for request in drafter.requests} == {draws}


class Quarrelsome(ToyDrafter):
    """Raises wherever it can."""

    name = "quarrelsome"

    def propose(self, requests):
        raise KeyError("propose")

    def release(self, request_id):
        raise KeyError("release")


@pytest.mark.parametrize("fault", ["propose", "release"])
def test_a_drafter_that_raises_steps_aside(fault):  # case 30
    drafter = Quarrelsome(toy())
    if fault == "release":
        drafter.propose = ToyDrafter(toy()).propose
    engine = Engine(toy(), drafters=[drafter, ToyDrafter(toy())], tree=TreeSpec(widths=(2, 1)), max_len=64)
    with pytest.warns(RuntimeWarning, match=f"'quarrelsome' raised KeyError.*{fault}") as caught:
        outputs = engine.generate([[3], [4]], PARAMS)
    assert len(caught) == 1 and [output.token_ids for output in outputs] == [plain(toy(), [3], PARAMS), plain(toy(), [4], PARAMS)]
    assert all(output.stats.accepted for output in outputs)
    statistics = engine.statistics()
    assert not engine.has_work and not engine.cache.request_ids and statistics.finished == 2


def test_a_rule_that_fails_on_a_drafted_path_takes_no_drafts_from_others():
    """The processor of one request objects to paths that its text never takes."""
    prompts = [[3], [4]]
    texts = [tuple([*prompt, *plain(toy(), prompt, PARAMS)]) for prompt in prompts]

    def picky(token_ids, logits):
        if texts[0][: len(token_ids)] != tuple(token_ids):
            raise ValueError("off the text")
        return logits

    params = [SamplingParams(max_tokens=20, logits_processors=picky), PARAMS]
    ssm = SsmDrafter("ssm", toy(), max_requests=2, block_size=128)
    engine = Engine(toy(), drafters=[ssm], tree=TreeSpec(widths=(2, 1)), max_len=64)
    outputs = engine.generate(prompts, params)
    assert [tuple(output.prompt_token_ids + output.token_ids) for output in outputs] == texts
    assert all(output.stats.tokens_per_step >= 2.5 for output in outputs)


@pytest.mark.parametrize("numbers", [np.array, torch.tensor, lambda numbers: [np.int64(number) for number in numbers]])
def test_numbers_of_other_libraries_count_as_numbers(numbers):
    def make_tree(text):
        token = int(toy().logits_of(text).argmax())
        return TokenTree(tokens=numbers([text[-1], token]), parents=numbers([-1, 0]), grades=numbers([0, 3]))

    engine = Engine(toy(), drafters=[FixedDrafter(make_tree)], tree=TreeSpec(widths=(1,)), max_len=64)
    output = engine.generate([[3]], PARAMS)[0]
    assert output.token_ids == plain(toy(), [3], PARAMS) and output.stats.accepted > 5
    json.dumps([list(engine.acceptance.of("fixed").rows()), output.token_ids])


def test_a_drafter_cannot_write_into_the_text():
    def vandal(request):
        request.tokens.append(5)

    class Vandal(ToyDrafter):
        def propose(self, requests):
            vandal(requests[0])

    with pytest.warns(RuntimeWarning, match="raised AttributeError"):
        assert generate(Vandal(toy())).stats.drafted == 0
