from collections.abc import Sequence

import numpy as np
import pytest
import torch

from flexspec.config import SamplingParams
from flexspec.runtime.logit_rules.factory import make_rules
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.runtime.verifiers.walk import WalkVerifier
from toy_model import ToyModel

VOCAB = 12


def sampler_of(params: SamplingParams, *, seed: int) -> RequestSampler:
    return RequestSampler(params, seed=seed, vocab_limit=VOCAB, rules=make_rules(params, ends=(1,), vocab_size=VOCAB))


def plain(model: ToyModel, sampler: RequestSampler, text: list[int], count: int) -> list[int]:
    for _ in range(count):
        text = [*text, sampler.pick(torch.from_numpy(model.logits_of(text)), len(text))]
    return text


def emitted(model: ToyModel, sampler: RequestSampler, text: list[int], tree: TokenTree, name: str = "coupled") -> list[int]:
    paths = [text]
    for node in range(1, len(tree.tokens)):
        paths.append([*paths[tree.parents[node]], tree.tokens[node]])
    verdict = WalkVerifier(name).verify(tree, lambda node: torch.from_numpy(model.logits_of(paths[node])), sampler, len(text))
    return [*paths[verdict.path[-1]], verdict.bonus]


def chain(tokens: Sequence[int], root: int) -> TokenTree:
    return TokenTree(tokens=[root, *tokens], parents=range(-1, len(tokens)))


def adversarial_tree(rng: np.random.Generator, root: int, future: Sequence[int]) -> TokenTree:
    """Random nodes, many of them hung along what plain sampling is going to say."""
    builder = TreeBuilder(root)
    on_path = [0]
    for _ in range(int(rng.integers(0, 14))):
        if rng.random() < 0.5 and len(on_path) <= len(future):
            on_path.append(builder.add(on_path[-1], future[len(on_path) - 1]))
        else:
            builder.add(int(rng.integers(len(builder))), int(rng.integers(VOCAB)))
    return builder.build()


PENALISED = SamplingParams(temperature=0.9, top_p=0.95, presence_penalty=1.0, repetition_penalty=1.5, min_tokens=4, logit_bias={2: 1.0})
PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.8),
    SamplingParams(temperature=1e-6),
    SamplingParams(),
    PENALISED,
]


@pytest.mark.parametrize("params", PARAMS, ids=["1", "0.7", "1e-6", "0", "penalised"])
def test_any_tree_emits_what_plain_decoding_would(params: SamplingParams) -> None:
    rng = np.random.default_rng(0)
    lengths = set()
    for trial in range(80):
        model = ToyModel(vocab_size=VOCAB, seed=trial, sharpness=1.5)
        by_path, by_text = (sampler_of(params, seed=trial) for _ in range(2))
        text = rng.integers(0, VOCAB, 3).tolist()
        # One sampler is told of the prompt alone and has the rest as a path, the other of the text as it grows.
        for sampler in (by_path, by_text):
            sampler.extend(text)
        expected = text
        while len(expected) < 26:
            expected = [*expected, by_path.pick(torch.from_numpy(model.logits_of(expected)), len(expected), expected[3:])]
        while len(text) < 11:
            before = len(text)
            text = emitted(model, by_text, text, adversarial_tree(rng, text[-1], expected[before:]))
            by_text.extend(text[before:])
            assert text == expected[: len(text)]
            lengths.add(len(text) - before)
    assert len(lengths) >= 4


def test_a_larger_tree_never_accepts_less() -> None:  # case 4
    model = ToyModel(vocab_size=VOCAB, seed=3)
    sampler = RequestSampler(SamplingParams(), seed=0, vocab_limit=VOCAB)
    text = [1, 2]
    future = plain(model, sampler, text, 3)[2:]
    small = chain(future[:2], 2)
    for sibling in range(VOCAB):
        larger = TokenTree(tokens=[*small.tokens, sibling], parents=[*small.parents, 0])
        assert emitted(model, sampler, text, larger, "greedy") == emitted(model, sampler, text, small, "greedy") == [*text, *future]


@pytest.mark.parametrize(
    ("tree", "length"),
    [
        (lambda future: TokenTree(tokens=[2, *(token for token in range(VOCAB) if token != future[0])][:5], parents=[-1, 0, 0, 0, 0]), 1),
        (lambda future: TokenTree(tokens=[2, (future[0] + 1) % VOCAB, future[0], (future[0] + 2) % VOCAB, 0], parents=[-1, 0, 0, 0, 2]), 2),
        (lambda future: chain(future, 2), 4),
        (lambda future: chain([future[0], (future[1] + 1) % VOCAB, future[2]], 2), 2),
        (lambda future: chain(future[:1], 2), 2),
        (lambda future: TokenTree.root(2), 1),
    ],
    ids=["4 wrong", "4 with one right", "1,1,1", "1,1,1 with a wrong one", "1", "root"],
)
def test_trees_of_every_shape(tree, length) -> None:  # type: ignore[no-untyped-def]  # case 5
    model = ToyModel(vocab_size=VOCAB, seed=5)
    sampler = RequestSampler(SamplingParams(), seed=0, vocab_limit=VOCAB)
    future = plain(model, sampler, [1, 2], 4)[2:]
    assert emitted(model, sampler, [1, 2], tree(future[:3]), "greedy") == [1, 2, *future[:length]]


def test_logits_are_asked_for_on_the_path_only() -> None:
    asked: list[int] = []

    def logits(node: int) -> torch.Tensor:
        asked.append(node)
        return torch.eye(3)[1]

    tree = TokenTree(tokens=[0, 2, 1, 1, 0], parents=[-1, 0, 0, 2, 3])
    verdict = WalkVerifier("greedy").verify(tree, logits, RequestSampler(SamplingParams(), seed=0, vocab_limit=3), 1)
    assert asked == [0, 2, 3] == list(verdict.path) and verdict.bonus == 1
