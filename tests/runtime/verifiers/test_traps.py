"""Known ways to get speculative sampling wrong, put in deliberately: the checks of exactness notice each of them.

Traps 6 and 7 (parameters that ignore the path, a bonus token from the unprocessed distribution) are in
test_sampling_parameters.py, where those parameters are.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from engine_reference import plain as plain_text
from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.engine import Engine
from flexspec.runtime.request import Request
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import Draw, TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers import mss, traversal
from flexspec.runtime.verifiers.base import Verifier
from flexspec.runtime.verifiers.registry import VERIFIERS
from flexspec.tree_shape import TreeSpec
from oracles.decode import Decoding, plain, speculate
from oracles.exactness import largest_error
from oracles.proposals import KINDS, Propose, Text, chosen, falsified, random_table, to_distribution, tree_of
from toy_drafter import ToyDrafter
from toy_model import ToyModel

EXACT, WRONG = 1e-12, 1e-3
VOCAB = 3
P = random_table(4, VOCAB, zeros=0.2)
Q = random_table(17, VOCAB, zeros=0.2, like=P)
Change = Callable[[list[Draw], TokenTree, Text], list[Draw]]

DRAWING = [("mss", "drawn"), ("without_replacement", "distinct"), ("traversal", "distinct"), ("traversal", "drawn")]
STOCHASTIC = ("mss", "without_replacement", "point_mass", "traversal")


def verifier_of(name: str) -> Verifier:
    return VERIFIERS.get(name)()


def error(propose: Propose, verifier: str) -> float:
    return largest_error(propose, verifier_of(verifier), P, horizon=3)


def untempered(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    """q as it was before the temperature that the children were drawn at."""
    changed = []
    for trial in trials:
        assert trial.q is not None
        weights = np.sqrt(trial.q.probs)
        changed.append(Draw(node=trial.node, q=Distribution(ids=trial.q.ids, probs=weights / weights.sum())))
    return changed


def unreduced(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    """Every child as if it had been drawn from the whole distribution."""
    return [Draw(node=trial.node, q=trials[0].q) for trial in trials]


def folded(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    """One trial for each child, however often it was drawn."""
    return list({trial.node: trial for trial in trials}.values())


def likeliest_first(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    return sorted(trials, key=lambda trial: -P(text).prob(tree.tokens[trial.node]))


def unlikely_dropped(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    return [trial for trial in trials if Q(text).prob(tree.tokens[trial.node]) > 0.3]


def best_kept(trials: list[Draw], tree: TokenTree, text: Text) -> list[Draw]:
    """Two are drawn where there is room for one."""
    return [max(trials, key=lambda trial: Q(text).prob(tree.tokens[trial.node]))]


@pytest.mark.parametrize(("verifier", "kind"), DRAWING)
@pytest.mark.parametrize("change", [untempered, likeliest_first, unlikely_dropped, best_kept])  # traps 1, 4, 5
def test_a_false_record_of_the_draws_is_noticed(change: Change, verifier: str, kind: str) -> None:
    honest = tree_of(KINDS[kind], (2, 1), Q)
    assert error(falsified(honest, lambda trials, tree, text: trials), verifier) < EXACT
    assert error(falsified(honest, change), verifier) > WRONG


@pytest.mark.parametrize("verifier", ["mss", "traversal"])
def test_draws_of_one_token_folded_into_one_trial_are_noticed(verifier: str) -> None:  # trap 3
    assert error(falsified(tree_of(KINDS["drawn"], (2, 1), Q), folded), verifier) > WRONG


@pytest.mark.parametrize("verifier", ["without_replacement", "traversal"])
def test_draws_without_replacement_verified_as_with_it_are_noticed(verifier: str) -> None:  # trap 4
    assert error(falsified(tree_of(KINDS["distinct"], (2, 1), Q), unreduced), verifier) > WRONG


@pytest.mark.parametrize("verifier", STOCHASTIC)
def test_a_chosen_child_taken_for_a_sample_is_noticed(verifier: str) -> None:  # trap 2
    honest = tree_of(chosen, (1, 1), Q)
    assert error(honest, verifier) < EXACT
    assert error(falsified(honest, lambda trials, tree, text: [Draw(node=trials[0].node, q=Q(text))]), verifier) > WRONG


def test_the_example_of_a_chosen_child_taken_for_a_sample() -> None:  # trap 2
    def emitted(q: Distribution | None) -> Propose:
        def propose(text: Text, draws: object) -> TokenTree:
            builder = TreeBuilder(text[-1])
            builder.add(0, 0, q)
            return builder.build()

        return propose

    even = to_distribution([0.5, 0.5])
    wrong = largest_error(emitted(to_distribution([0.6, 0.4])), verifier_of("mss"), lambda text: even, horizon=1)
    assert wrong == pytest.approx(5 / 6 - 0.5) and largest_error(emitted(None), verifier_of("mss"), lambda text: even, horizon=1) < EXACT


def softmaxed(p: Distribution, token: int, q: Distribution | None, scale: float = 1.0) -> tuple[Distribution, float]:
    left = np.maximum(scale * p.probs - [float(other == token) if q is None else q.prob(int(other)) for other in p.ids], 0.0)
    return Distribution(ids=p.ids, probs=np.exp(left) / np.exp(left).sum()), float(left.sum())


def unchanged(p: Distribution, token: int, q: Distribution | None, scale: float = 1.0) -> tuple[Distribution, float]:
    return p, 1.0


@pytest.mark.parametrize("wrong", [softmaxed, unchanged])  # trap 8
@pytest.mark.parametrize(("verifier", "kind"), [*DRAWING, ("point_mass", "chosen")])
def test_a_wrong_residual_is_noticed(verifier: str, kind: str, wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mss, traversal):
        monkeypatch.setattr(module, "residual", wrong)
    assert error(tree_of(KINDS[kind], (1, 1), Q), verifier) > WRONG


def test_an_end_that_only_counts_as_the_last_token_of_a_run_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:  # trap 9
    model, params, prompt = ToyModel(vocab_size=24, seed=2), SamplingParams(max_tokens=12), [3, 1]
    tokens = plain_text(model, prompt, params)
    end = next(place for place in range(2, 12) if tokens[place] not in tokens[:place] and place % 4 != 0)

    def generated() -> list[int]:
        tree = TreeSpec(widths=(1, 1, 1))
        engine = Engine(model, drafters=[ToyDrafter(model)], tree=tree, max_len=32, eos_token_ids=[tokens[end]])
        return engine.generate([prompt], params)[0].token_ids

    honest = Request._cut_at_end

    def careless(request: Request, candidates: list[int]) -> tuple[list[int], object]:
        kept, reason = honest(request, candidates[-1:])
        return (candidates[:-1] + kept, reason) if len(candidates) < request.num_remaining else honest(request, candidates)

    assert generated() == tokens[: end + 1]
    monkeypatch.setattr(Request, "_cut_at_end", careless)
    assert generated() != tokens[: end + 1]


def texts(verifier: str, widths: Sequence[int]) -> list[list[int]]:
    """Of several seeds, with trees of these widths."""
    target, drafter = ToyModel(vocab_size=8, seed=3, sharpness=1.0), ToyDrafter(ToyModel(vocab_size=8, seed=3, sharpness=1.0, noise=0.5))
    found = []
    for seed in range(10):
        sampler = RequestSampler(SamplingParams(temperature=1.0), seed=seed, vocab_limit=8)
        decoding = Decoding(request_id=seed, text=[1, 2], sampler=sampler)
        speculate(target, drafter, [decoding], widths, steps=6, verifier=verifier_of(verifier))
        found.append(decoding.text[:8])
        if verifier == "coupled":
            assert decoding.text == plain(target, sampler, [1, 2], len(decoding.text))
    return found


@pytest.mark.parametrize("verifier", STOCHASTIC)
def test_a_seed_repeats_a_text_only_with_the_same_trees_unless_coupled(verifier: str) -> None:  # trap 10
    """So nothing that a clock decides may size the trees of the others, which `check_pair` sees to."""
    assert texts(verifier, (2, 1)) == texts(verifier, (2, 1))
    assert texts(verifier, (2, 1)) != texts(verifier, (1, 1, 1))
    assert texts("coupled", (2, 1)) == texts("coupled", (1, 1, 1)) == texts("coupled", (4,))
