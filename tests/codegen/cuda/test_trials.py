"""What a device's trials come to decides on whole trees as the verifiers do, number for number."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.device_trials import TrialPlans
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import KeyedDraws
from flexspec.runtime.randomness import KeyedNoise
from flexspec.runtime.sampling import NonFiniteLogitsError, RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict, Verifier
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.point_mass import PointMassVerifier
from flexspec.runtime.verifiers.traversal import TraversalVerifier
from flexspec.runtime.verifiers.without_replacement import WithoutReplacementVerifier
from oracles.proposals import KINDS, to_distribution, tree_of

trials = pytest.importorskip("flexspec.codegen.cuda.trials", reason="no Triton here")
node_rules = pytest.importorskip("flexspec.codegen.cuda.node_rules", reason="no Triton here")

VOCAB = 7
KINDS_OF = {
    MssVerifier: "drawn",
    WithoutReplacementVerifier: "distinct",
    PointMassVerifier: "chosen",
    TraversalVerifier: "drawn",  # tokens that come twice included
}
PARAMS = [
    {"temperature": 0.8},
    {"temperature": 1.3, "top_k": 4},
    {"temperature": 1.0, "top_p": 0.7},
    {"temperature": 0.9, "min_p": 0.2},
    {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
]


@pytest.fixture(params=["kernels", "references"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Runs the kernels, or their references; gives how many requests are worth the time."""
    if request.param == "references":
        return 60
    for name in ("residual", "probabilities"):
        monkeypatch.setattr(trials, f"{name}_reference", getattr(trials, name))
    monkeypatch.setattr(node_rules, "truncate_reference", node_rules.truncate)
    for name, sizes in {"truncate": {"_WIDE_BLOCK": 8, "_BLOCK": 8}, "probabilities": {"_BLOCK": 16}, "residual": {"_BLOCK": 16}}.items():
        module = __import__(f"flexspec.codegen.cuda.kernels.{name}", fromlist=[name])
        for constant, value in sizes.items():
            monkeypatch.setattr(module, constant, value)
    return 3


def a_request(verifier: Verifier, place: int, **params: float) -> SimpleNamespace:
    sampler = RequestSampler(SamplingParams(**params), seed=place, vocab_limit=VOCAB - place % 2, completion=place % 3)  # type: ignore[arg-type]
    return SimpleNamespace(sampler=sampler, verifier=verifier, tokens=[0] * (50 + place))


def a_tree(kind: str, widths: tuple[int, ...], seed: int) -> TokenTree:
    def q_at(text: tuple[int, ...]) -> Distribution:
        return to_distribution(np.random.default_rng([seed, *text, 1]).dirichlet(np.full(VOCAB - seed % 2, 0.8)).tolist())

    return tree_of(KINDS[kind], widths, q_at)((0,), KeyedDraws(KeyedNoise(seed), index=0, stream=9))


def by_device(requests: list[SimpleNamespace], trees: list[TokenTree], logits: torch.Tensor) -> list[Verdict | None]:
    plans = TrialPlans(list(zip(requests, trees, strict=True)))  # type: ignore[arg-type]
    by = trials.KernelTrials()
    results = by.read(by.launch(logits, plans.tried).numpy())
    return [plans.verdict(place, results) for place in range(len(trees))]


def by_host(requests: list[SimpleNamespace], trees: list[TokenTree], logits: torch.Tensor) -> list[Verdict | None]:
    found: list[Verdict | None] = []
    first = 0
    for request, tree in zip(requests, trees, strict=True):
        rows = logits[first : first + len(tree.tokens)]
        first += len(tree.tokens)
        try:
            verdict = request.verifier.verify(tree, rows.__getitem__, request.sampler, len(request.tokens))
            found.append(Verdict(path=list(verdict.path), bonus=verdict.bonus))
        except NonFiniteLogitsError:
            found.append(None)
    return found


@pytest.mark.parametrize("make", KINDS_OF, ids=lambda make: make.name)
def test_verdicts_are_those_of_the_verifiers(make: Callable[[], Verifier], size: int) -> None:
    rng = np.random.default_rng(1)
    requests = [a_request(make(), place, **PARAMS[place % len(PARAMS)]) for place in range(size)]
    widths = (2, 1) if size == 3 else (3, 2, 1)
    trees = [a_tree(KINDS_OF[make], widths if place % 5 else (), place) for place in range(size)]  # type: ignore[index]
    logits = torch.from_numpy(rng.normal(size=(sum(len(tree.tokens) for tree in trees), VOCAB)) * 1.5).float()
    if size > 3:
        logits[rng.random(len(logits)) < 0.1] = torch.nan
    found = by_device(requests, trees, logits)
    assert found == by_host(requests, trees, logits)
    assert size == 3 or {len(verdict.path) if verdict else 0 for verdict in found} >= {0, 1, 2, 3}


def test_all_kinds_share_a_launch(size: int) -> None:
    requests = [a_request(make(), place, **PARAMS[place]) for place, make in enumerate(KINDS_OF)]
    trees = [a_tree(kind, (2,), place) for place, kind in enumerate(KINDS_OF.values())]
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(sum(len(tree.tokens) for tree in trees), VOCAB))).float()
    together = by_device(requests, trees, logits)
    assert together == by_host(requests, trees, logits)


def test_trees_may_be_deep() -> None:
    depth = 300
    tree = TokenTree(tokens=[0] * (depth + 1), parents=range(-1, depth))
    request = a_request(TraversalVerifier(), 0, temperature=1.0)
    logits = torch.zeros((depth + 1, VOCAB))
    logits[:, 0] = 50.0
    (verdict,) = by_device([request], [tree], logits)
    assert verdict == Verdict(path=list(range(depth + 1)), bonus=0)


def test_empty_arrays_are_moved_too() -> None:
    arrays = {"none": np.empty(0), "flat": np.empty((2, 0), dtype=np.int32), "some": np.arange(3)}
    tensors = node_rules.moved(arrays, torch.device("cpu"))
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"none": (0,), "flat": (2, 0), "some": (3,)}
    assert tensors["flat"].dtype == torch.int32 and tensors["some"].tolist() == [0, 1, 2]
