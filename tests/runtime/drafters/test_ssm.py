import warnings

import numpy as np
import pytest
import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.kv_storage import KVStorage
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.draws import Draws
from flexspec.runtime.randomness import VERIFIER_STREAM
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.walk import WalkVerifier
from flexspec.tree_shape import TreeSpec
from oracles.decode import Decoding, advance, plain, speculate
from oracles.enumerate import EnumeratedDraws, law
from oracles.exactness import Text, completed
from toy_model import ToyModel

VOCAB = 24
GREEDY = SamplingParams()


def sampler(params: SamplingParams = GREEDY, seed: int = 9, vocab: int = VOCAB) -> RequestSampler:
    return RequestSampler(params, seed=seed, vocab_limit=vocab)


def drafter(model: ToyModel, **options: float) -> SsmDrafter:
    return SsmDrafter(
        "toy", model, max_requests=int(options.pop("max_requests", 4)), block_size=int(options.pop("block_size", 400)), **options
    )


def ragged(params: SamplingParams) -> list[Decoding]:
    rng = np.random.default_rng(1)
    return [
        Decoding(request_id=i, text=rng.integers(0, VOCAB, length).tolist(), sampler=sampler(params, seed=i))
        for i, length in enumerate((1, 7, 90))
    ]


def request(
    text: list[int], widths: tuple[int, ...], *, request_id: int = 0, draws: bool = False, params: SamplingParams = GREEDY
) -> DraftRequest:
    return DraftRequest(
        request_id=request_id,
        tokens=text,
        sampler=sampler(params),
        spec=TreeSpec(widths=widths),
        children=Children.DRAWN if draws else Children.ANY,
    )


@pytest.mark.parametrize(
    ("params", "widths", "alpha"),
    [(GREEDY, (1,) * 4, 0.5), (GREEDY, (2, 2, 1), 0.5), (GREEDY, (1,), 0.5), (SamplingParams(temperature=1.0), (1,) * 4, 1.0)],
    ids=["greedy chain", "greedy tree", "greedy one", "coupled chain"],
)
def test_the_model_as_its_own_draft_accepts_everything(params: SamplingParams, widths: tuple[int, ...], alpha: float) -> None:  # case 33
    model = ToyModel(vocab_size=VOCAB, seed=4)
    decodings = ragged(params)
    starts = [list(decoding.text) for decoding in decodings]
    speculate(model, drafter(model, alpha=alpha), decodings, widths, steps=25)
    for decoding, start in zip(decodings, starts, strict=True):
        assert decoding.accepted == [len(widths)] * 25
        assert decoding.text == plain(model, decoding.sampler, start, len(decoding.text))


def test_it_accepts_everything_also_after_other_steps() -> None:  # case 33: after a bonus token, a lookup draft, a pause
    model = ToyModel(vocab_size=VOCAB, seed=4)
    own = drafter(model)
    decodings = ragged(GREEDY)
    rng = np.random.default_rng(0)
    for _ in range(20):
        speculate(model, own, decodings, (2, 1, 1), steps=1)
        assert [decoding.accepted[-1] for decoding in decodings] == [3, 3, 3]
        for decoding in decodings:
            future = plain(model, decoding.sampler, decoding.text, len(decoding.text) + 4)[len(decoding.text) :]
            right = int(rng.integers(0, 4))
            tokens = [decoding.text[-1], *future[:right], (future[right] + 1) % VOCAB]
            if rng.random() < 0.7:
                advance(model, WalkVerifier("greedy"), decoding, TokenTree(tokens=tokens, parents=range(-1, len(tokens) - 1)))
            if rng.random() < 0.2:
                own.release(decoding.request_id)


def test_accepted_drafts_are_not_fed_again() -> None:
    model = ToyModel(vocab_size=VOCAB, seed=4)
    decoding = Decoding(request_id=0, text=[1, 2, 3], sampler=sampler())
    own = drafter(model)
    speculate(model, own, [decoding], (1,) * 4, steps=1)
    assert (model.num_passes, model.num_tokens) == (4, 3 + 3), "the prompt, then three levels: the fourth is not fed"
    speculate(model, own, [decoding], (1,) * 4, steps=10)
    assert (model.num_passes, model.num_tokens) == (4 + 40, 6 + 50), "the fourth level's token and the bonus token, three levels"


def test_drafts_only_as_deep_as_asked_even_if_asked_twice() -> None:
    model = ToyModel(vocab_size=VOCAB, seed=4)
    own = drafter(model)
    text = [1, 2, 3]
    first = own.propose([request(text, (2, 2))])[0]
    second = own.propose([request(text, (2, 2))])[0]
    assert first == second
    assert first.num_drafted == 6 and max(first.depths()) == 2
    assert own.propose([request(text, (1,))])[0].tokens == first.tokens[:2]


@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(temperature=0.9), SamplingParams(temperature=0.8, top_p=0.9)], ids=["0", "0.9", "top_p"]
)
@pytest.mark.parametrize("widths", [(1,) * 5, (3, 2, 1), (4,)], ids=str)
def test_an_imperfect_draft_changes_nothing(params: SamplingParams, widths: tuple[int, ...]) -> None:
    target, draft = ToyModel(vocab_size=VOCAB, seed=4), ToyModel(vocab_size=VOCAB, seed=4, noise=0.4)
    decodings = ragged(params)
    starts = [list(decoding.text) for decoding in decodings]
    speculate(target, drafter(draft), decodings, widths, steps=25)
    accepted = [count for decoding in decodings for count in decoding.accepted]
    assert 0 < sum(accepted) < len(accepted) * len(widths)
    for decoding, start in zip(decodings, starts, strict=True):
        assert decoding.text == plain(target, decoding.sampler, start, len(decoding.text))


def test_what_shares_a_batch_changes_no_draft() -> None:
    target, draft = ToyModel(vocab_size=VOCAB, seed=4), ToyModel(vocab_size=VOCAB, seed=4, noise=0.4)
    params = SamplingParams(temperature=1.0)
    for verifier in (WalkVerifier("coupled"), MssVerifier()):
        together = ragged(params)
        speculate(target, drafter(draft, alpha=0.5), together, (2, 2), steps=10, verifier=verifier)
        for i, alone in enumerate(ragged(params)):
            speculate(
                target,
                drafter(ToyModel(vocab_size=VOCAB, seed=4, noise=0.4, max_pass_tokens=3), alpha=0.5),
                [alone],
                (2, 2),
                steps=10,
                verifier=verifier,
            )
            assert alone.text == together[i].text
            assert [tree.tokens for tree in alone.trees] == [tree.tokens for tree in together[i].trees]


def test_a_draft_that_is_always_wrong_costs_nothing_but_time() -> None:  # case 2
    target = ToyModel(vocab_size=VOCAB, seed=4)

    class Wrong(ToyModel):
        def logits_of(self, path):  # type: ignore[no-untyped-def]
            return -super().logits_of(path)

    decoding = Decoding(request_id=0, text=[3], sampler=sampler())
    speculate(target, drafter(Wrong(vocab_size=VOCAB, seed=4)), [decoding], (1,), steps=30)
    assert decoding.accepted == [0] * 30
    assert decoding.text == plain(target, sampler(), [3], 31)


@pytest.mark.parametrize(("length", "depths"), [(60, [4, 0, 0]), (64, [1, 0, 0]), (100, [0, 0, 0])])
def test_past_its_positions_it_stands_aside_and_counts(length: int, depths: list[int]) -> None:  # case 11
    target = ToyModel(vocab_size=VOCAB, seed=4, max_positions=256)
    own = drafter(ToyModel(vocab_size=VOCAB, seed=4, max_positions=64))
    decoding = Decoding(request_id=0, text=[1] * length, sampler=sampler())
    speculate(target, own, [decoding], (1, 1, 1, 1), steps=3)
    assert decoding.accepted == depths
    assert own.stats.proposals == 3 and own.stats.fallbacks == depths.count(0)
    assert decoding.text == plain(target, sampler(), [1] * length, len(decoding.text))


def test_at_the_end_of_its_slots_the_draft_shortens() -> None:  # case 12
    model = ToyModel(vocab_size=VOCAB, seed=4)
    own = drafter(model, block_size=20)
    depths = [max(own.propose([request([1] * length, (2, 2, 1))])[0].depths()) for length in range(12, 23)]
    assert depths == [3, 3, 3, 2, 2, 2, 2, 1, 1, 0, 0]


def test_requests_without_a_block_get_no_drafts_until_one_is_free() -> None:
    own = drafter(ToyModel(vocab_size=VOCAB, seed=4), max_requests=2)
    trees = own.propose([request([1, 2], (2,), request_id=i) for i in range(3)])
    assert [tree.num_drafted for tree in trees] == [2, 2, 0]
    assert own.stats.fallbacks == 1
    own.release(0)
    own.release(99)
    assert own.propose([request([1, 2], (2,), request_id=2)])[0].num_drafted == 2


def test_a_smaller_vocabulary_drafts_until_a_token_is_unknown() -> None:  # case 13
    own = drafter(ToyModel(vocab_size=10, seed=4))
    tree = own.propose([request([1, 9], (3,))])[0]
    assert tree.num_drafted == 3 and max(tree.tokens) < 10
    assert own.propose([request([1, 9, 10], (3,))])[0].num_drafted == 0
    assert own.propose([request([1, 9, 10, 2], (3,))])[0].num_drafted == 0
    assert own.stats.fallbacks == 2


def test_padding_of_a_larger_vocabulary_is_never_drafted() -> None:  # case 13
    own = drafter(ToyModel(vocab_size=VOCAB + 128, seed=4))
    for draws in (False, True):
        tree = own.propose([request([1, 2], (20, 1), request_id=int(draws), draws=draws, params=SamplingParams(temperature=5.0))])[0]
        assert max(tree.tokens) < VOCAB


class Broken(ToyModel):
    """Gives NaN after `limit` tokens."""

    limit = 0

    def forward(self, batch: Batch, kv: KVStorage, features: torch.Tensor | None = None) -> torch.Tensor:
        logits = super().forward(batch, kv, features)
        logits[torch.from_numpy(batch.positions[batch.output_rows] >= self.limit)] = float("nan")
        return logits


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize(("limit", "drafted"), [(0, 0), (3, 1)])
def test_nan_drafts_nothing_and_warns_once(draws: bool, limit: int, drafted: int) -> None:  # case 30
    model = Broken(vocab_size=VOCAB, seed=4)
    model.limit = limit
    own = drafter(model)
    asked = request([1, 2, 3], (1, 1, 1), draws=draws, params=SamplingParams(temperature=1.0))
    with pytest.warns(RuntimeWarning, match=r"'toy' drafts nothing where its logits are not finite.*nan"):
        assert own.propose([asked])[0].num_drafted == drafted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own.propose([asked])[0].num_drafted == drafted


def test_drawn_children_carry_what_they_were_drawn_from() -> None:
    model = ToyModel(vocab_size=VOCAB, seed=4, sharpness=1.0)
    params = SamplingParams(temperature=0.8, top_p=0.9)
    tree = drafter(model).propose([request([1, 2], (6, 1), draws=True, params=params)])[0]
    expected = sampler(params).distribution(torch.from_numpy(model.logits_of([1, 2])))
    assert len(tree.draws[0]) == 6 > len(tree.children()[0]) > 1
    for draw in tree.draws[0]:
        assert draw.q is not None
        np.testing.assert_array_equal(draw.q.ids, expected.ids)
        np.testing.assert_allclose(draw.q.probs, expected.probs)
    assert drafter(model).propose([request([1, 2], (3,), draws=True)])[0].num_drafted == 3, "at temperature 0 nothing is drawn"


class _Enumerated(RequestSampler):
    """A sampler whose draws are branches."""

    source: EnumeratedDraws

    def draws(self, index: int, stream: int = 0) -> EnumeratedDraws:  # type: ignore[override]
        return self.source


@pytest.mark.parametrize(("widths", "steps"), [((2,), 1), ((1, 1), 1), ((1,), 2)])
def test_mss_with_a_real_draft_is_exact(widths: tuple[int, ...], steps: int) -> None:
    params = SamplingParams(temperature=0.9, top_p=0.95)
    target, model = ToyModel(vocab_size=3, seed=1, sharpness=1.0), ToyModel(vocab_size=3, seed=1, sharpness=1.0, noise=0.5)
    length = 2 + len(widths) + steps
    choose = _Enumerated(params, seed=0, vocab_limit=3)

    def program(draws: EnumeratedDraws) -> Text:
        choose.source = draws
        decoding = Decoding(request_id=0, text=[0, 1], sampler=choose)
        speculate(target, drafter(model, block_size=16), [decoding], widths, steps=steps, verifier=MssVerifier())
        return tuple(decoding.text[:length])

    def table(text: Text):  # type: ignore[no-untyped-def]
        return choose.distribution(torch.from_numpy(target.logits_of(text)))

    found, wanted = completed(law(program), table, length), completed({(0, 1): 1.0}, table, length)
    assert found.keys() == wanted.keys()
    assert max(abs(found[text] - wanted[text]) for text in wanted) < 1e-12


class _Recording(RequestSampler):
    """A sampler that remembers the keys of its draws."""

    def draws(self, index: int, stream: int = VERIFIER_STREAM) -> Draws:
        self.keys = [*getattr(self, "keys", []), (index, stream)]
        return super().draws(index, stream)


def test_no_key_is_used_twice() -> None:
    target, draft = ToyModel(vocab_size=VOCAB, seed=4), ToyModel(vocab_size=VOCAB, seed=4, noise=0.3)
    choose = _Recording(SamplingParams(temperature=0.7), seed=1, vocab_limit=VOCAB)
    decoding = Decoding(request_id=0, text=[1, 2], sampler=choose)
    speculate(target, drafter(draft), [decoding], (2, 2, 1), steps=20, verifier=MssVerifier())
    assert max(decoding.accepted) > 1
    assert len(set(choose.keys)) == len(choose.keys) == 20 + len(decoding.text) - 2


def test_lookup_drafts_and_an_ssm_take_turns() -> None:
    target = ToyModel(vocab_size=VOCAB, seed=4, memory=1)
    own, lookup = drafter(ToyModel(vocab_size=VOCAB, seed=4, memory=1)), NgramDrafter()
    decoding = Decoding(request_id=0, text=[1, 2], sampler=sampler())
    for turn in range(20):
        speculate(target, own if turn % 2 else lookup, [decoding], (1, 1, 1), steps=1)
    assert decoding.accepted[1::2] == [3] * 10
    assert decoding.text == plain(target, sampler(), [1, 2], len(decoding.text))
