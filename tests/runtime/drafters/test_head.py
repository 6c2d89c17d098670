"""The head drafter: full acceptance of an exact head, and a cache that always holds the LLM's own features."""

import warnings
from collections.abc import Sequence

import pytest
import torch

from engine_reference import plain, run_checked
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.head import HeadDrafter
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec
from toy_states import COLUMNS, StatefulToy, ToyHead, head_drafter, state_after

VOCAB = 24
PROMPTS = [[3], list(range(20)), [5, 6, 7] * 12]
CHAIN, TREE = TreeSpec(widths=(1, 1, 1, 1)), TreeSpec(widths=(2, 2, 1))


def toy(**changes) -> StatefulToy:
    return StatefulToy(**{"vocab_size": VOCAB, "seed": 3} | changes)


def head(**changes) -> ToyHead:
    return ToyHead(**{"vocab_size": VOCAB, "seed": 3} | changes)


def request(
    text: Sequence[int], tree: Tree = TREE, *, request_id: int = 0, params: SamplingParams | None = None, **options
) -> DraftRequest:
    sampler = RequestSampler(params or SamplingParams(), seed=7, vocab_limit=VOCAB)
    return DraftRequest(request_id=request_id, tokens=text, sampler=sampler, spec=tree, **options)


def tell(drafter: HeadDrafter, text: Sequence[int], *, request_id: int = 0, start: int = 0) -> None:
    """The states of all of the text but its last token."""
    states = [state_after(text[: end + 1]) for end in range(start, len(text) - 1)]
    drafter.read_states(request_id, start, torch.tensor([(b, 7, a + b) for a, b in states], dtype=torch.float32))


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_exact_head_accepts_the_full_depth(tree: TreeSpec, temperature: float) -> None:  # case 33
    params = SamplingParams(max_tokens=200, temperature=temperature, seed=2)
    engine = Engine(toy(), drafters=[head_drafter(head(), alpha=1.0)], tree=tree, max_len=300, max_batch=3)
    outputs = engine.generate(PROMPTS, params)
    assert [output.stats.steps for output in outputs] == [1 + -(-199 // (tree.depth + 1))] * 3


def test_it_does_so_next_to_lookup_and_in_small_passes() -> None:  # case 33, after a lookup draft
    engine = Engine(
        toy(), drafters=[NgramDrafter(), head_drafter(head(max_pass_tokens=3))], tree=TREE, max_len=200, max_batch=3, pass_tokens=64
    )
    outputs = engine.generate(PROMPTS, SamplingParams(max_tokens=60))
    assert [output.stats.steps for output in outputs] == [1 + -(-59 // 4)] * 3


class Compared(HeadDrafter):
    """Proposes what a fresh drafter proposes that is given the whole text and all states at once."""

    def __init__(self, model: ToyHead, fresh: ToyHead) -> None:
        self._options = {"columns": COLUMNS, "max_requests": 4, "block_size": 256, "alpha": 0.5}
        super().__init__("head", model, **self._options)
        self._fresh_model = fresh
        self._all: dict[int, list[torch.Tensor]] = {}
        self.num_compared = 0

    def read_states(self, request_id: int, start: int, states: torch.Tensor) -> None:
        self._all.setdefault(request_id, []).append(states)
        super().read_states(request_id, start, states)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        trees = super().propose(requests)
        fresh = HeadDrafter("head", self._fresh_model, **self._options)
        for asked in requests:
            fresh.read_states(asked.request_id, 0, torch.cat(self._all[asked.request_id]))
        for tree, other in zip(trees, fresh.propose(requests), strict=True):
            assert (tree.tokens, tree.parents, tree.grades) == (other.tokens, other.parents, other.grades)
            for node, draws in tree.draws.items():
                for draw, twin in zip(draws, other.draws[node], strict=True):
                    assert draw.node == twin.node and (draw.q.probs == twin.q.probs).all()
        self.num_compared += len(trees)
        return trees

    def release(self, request_id: int) -> None:
        super().release(request_id)
        self._all.pop(request_id, None)


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=str)
@pytest.mark.parametrize(("temperature", "verifier"), [(0.0, "greedy"), (0.9, "coupled"), (0.9, "mss")])
def test_the_cache_always_is_that_of_the_whole_text(tree: TreeSpec, temperature: float, verifier: str) -> None:
    drafter = Compared(head(noise=0.3), head(noise=0.3))
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=5)
    engine = Engine(toy(), drafters=[drafter], tree=tree, max_len=200, max_batch=3, pass_tokens=40, verifier_name=verifier)
    outputs = engine.generate(PROMPTS, params)
    assert drafter.num_compared > 20
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.steps for output in outputs) * tree.depth


@pytest.mark.parametrize("tree", [CHAIN, TREE, TreeLimits(depth=4, branch=2, budget=12)], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_that_of_plain_decoding(tree: Tree, temperature: float) -> None:  # cases 1, 22, 34
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=9)
    for max_batch, pass_tokens in ((1, 64), (3, 24)):
        drafters = [head_drafter(head(noise=0.3)), NgramDrafter()]
        engine = Engine(toy(), drafters=drafters, tree=tree, max_len=128, max_batch=max_batch, pass_tokens=pass_tokens)
        prompts = {engine.add(prompt, params): prompt for prompt in PROMPTS}
        assert list(run_checked(engine, prompts).values()) == [plain(toy(), prompt, params) for prompt in PROMPTS]


def test_accepted_drafts_are_fed_again() -> None:
    model = head()
    drafter = head_drafter(model)
    text = [1, 2, 3]
    tell(drafter, text)
    tree = drafter.propose([request(text, CHAIN)])[0]
    assert (model.num_passes, model.num_tokens) == (4, 2 + 3), "the text without its first token, then three levels"
    longer = [*text, *tree.tokens[1:], 9]
    tell(drafter, longer, start=2)
    drafter.propose([request(longer, CHAIN)])
    assert (model.num_passes, model.num_tokens) == (8, 5 + 5 + 3), "all that is new, with the LLM's features"


def test_asked_twice_it_proposes_the_same() -> None:
    drafter = head_drafter(head())
    tell(drafter, [1, 2, 3])
    first = drafter.propose([request([1, 2, 3])])[0]
    assert first == drafter.propose([request([1, 2, 3])])[0] and first.num_drafted == 10
    assert drafter.propose([request([1, 2, 3], TreeSpec(widths=(1,)))])[0].tokens == first.tokens[:2]


def test_a_pause_loses_no_states() -> None:
    drafter = head_drafter(head())
    text = plain(toy(), [1, 2], SamplingParams(max_tokens=40))
    text = [1, 2, *text]
    tell(drafter, text[:3])
    drafter.propose([request(text[:3])])
    for length in range(4, 20):  # steps in which it is not asked
        tell(drafter, text[:length], start=length - 2)
    assert list(drafter.propose([request(text[:19], CHAIN)])[0].tokens) == text[18:23]


def test_without_all_states_it_drafts_nothing_and_counts() -> None:
    drafter = head_drafter(head())
    assert drafter.propose([request([1, 2, 3])])[0].num_drafted == 0, "attached late"
    tell(drafter, [1, 2, 3, 4], start=2)
    assert drafter.propose([request([1, 2, 3, 4])])[0].num_drafted == 0
    assert (drafter.stats.proposals, drafter.stats.fallbacks) == (2, 2)
    tell(drafter, [1, 2, 3], request_id=1)
    trees = drafter.propose([request([1, 2, 3, 4]), request([1, 2, 3], request_id=1)])
    assert [tree.num_drafted for tree in trees] == [0, 10]
    drafter.release(1)
    assert drafter.propose([request([1, 2, 3], request_id=1)])[0].num_drafted == 0
    tell(drafter, [5, 6], request_id=1)
    assert drafter.propose([request([5, 6], request_id=1)])[0].num_drafted == 10, "another request of the same name"
    assert drafter.propose([request([5], request_id=2)])[0].num_drafted == 0, "there is nothing to feed yet"


@pytest.mark.parametrize(("length", "depth"), [(55, 4), (62, 4), (63, 3), (65, 1), (66, 0)])
def test_it_stays_within_its_positions(length: int, depth: int) -> None:  # case 11
    drafter = head_drafter(head(max_positions=64))
    text = [1] * length
    tell(drafter, text)
    assert max(drafter.propose([request(text, CHAIN)])[0].depths()) == depth
    assert drafter.stats.fallbacks == (depth == 0)
    tell(drafter, [1] * (length + 1), start=length - 1)
    assert max(drafter.propose([request([1] * (length + 1), CHAIN)])[0].depths()) == max(min(65 - length, 4), 0)


def test_it_stays_within_its_slots() -> None:  # case 12
    for tree, depths in ((TREE, [3, 3, 3, 2, 2, 2, 2, 1, 1, 0, 0]), (TreeLimits(depth=3, branch=2, budget=12), [3] * 7 + [2, 1, 0, 0])):
        found = []
        for length in range(13, 24):
            drafter = head_drafter(head(), block_size=20)
            tell(drafter, [1] * length)
            found.append(max(drafter.propose([request([1] * length, tree)])[0].depths()))
        assert found == depths


def test_a_smaller_vocabulary_and_requests_without_a_block() -> None:  # case 13
    drafter = head_drafter(head(vocab_size=10), max_requests=1)
    for request_id, text in enumerate(([1, 2], [1, 2], [1, 11])):
        tell(drafter, text, request_id=request_id)
    trees = drafter.propose([request([1, 2], request_id=0), request([1, 2], request_id=1)])
    assert [tree.num_drafted for tree in trees] == [10, 0] and max(trees[0].tokens) < 10
    drafter.release(0)
    assert drafter.propose([request([1, 2], request_id=1)])[0] == trees[0]
    drafter.release(1)
    assert drafter.propose([request([1, 11], request_id=2)])[0].num_drafted == 0
    assert (drafter.stats.proposals, drafter.stats.fallbacks) == (4, 2)


@pytest.mark.parametrize("children", [Children.ANY, Children.DRAWN])
@pytest.mark.parametrize(("depth", "drafted"), [(0, 0), (1, 2), (2, 6)])
def test_states_that_are_not_finite_draft_nothing_and_warn_once(children: Children, depth: int, drafted: int) -> None:  # case 30
    class Broken(ToyHead):
        def forward(self, batch, kv, features=None):  # type: ignore[no-untyped-def]
            logits = super().forward(batch, kv, features)
            logits[torch.from_numpy(batch.positions[batch.output_rows] >= 1 + depth)] = float("nan")
            return logits

    drafter = head_drafter(Broken(vocab_size=VOCAB, seed=3, sharpness=0.1))
    tell(drafter, [1, 2, 3])
    asked = request([1, 2, 3], params=SamplingParams(temperature=1.0), children=children)
    with pytest.warns(RuntimeWarning, match=r"'head' drafts nothing where its logits are not finite.*nan"):
        assert drafter.propose([asked])[0].num_drafted == drafted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert drafter.propose([asked])[0].num_drafted == drafted
