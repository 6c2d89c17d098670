"""What nodes came to decides on whole trees as the verifiers do, number for number."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from flexspec.codegen.cuda.kernels.residual import Trials, residual, residual_reference
from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import KeyedDraws
from flexspec.runtime.randomness import VERIFIER_STREAM, KeyedNoise, to_uniform
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verifier
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.traversal import TraversalVerifier
from flexspec.runtime.verifiers.without_replacement import WithoutReplacementVerifier
from oracles.proposals import KINDS, to_distribution, tree_of

RUN = {"kernel": residual, "reference": residual_reference}


def keyed_uniforms(sampler: RequestSampler, index: int, count: int) -> torch.Tensor:
    raw = KeyedNoise(sampler.seed, sampler.completion).bits(0, count, index=index, stream=VERIFIER_STREAM)
    return torch.from_numpy(to_uniform(raw))


def tree_tensors(tree: TokenTree, vocab: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The trials of all nodes; q rows are stored once a node and taken out of again by the kernel if they are distinct."""
    width = max(len(draws) for draws in tree.draws.values())
    tokens, rows = torch.full((2, len(tree.tokens), width), -1, dtype=torch.int32)
    q = torch.zeros((len(tree.tokens), vocab), dtype=torch.float64)
    for node, draws in tree.draws.items():
        for trial, draw in enumerate(draws):
            tokens[node, trial] = tree.tokens[draw.node]
            if draw.q is not None:
                rows[node, trial] = node
                if not q[node].any():
                    q[node, draw.q.ids] = torch.from_numpy(draw.q.probs)
    return q, tokens, rows


def verdict_by_kernel(
    by: str, tree: TokenTree, p: torch.Tensor, sampler: RequestSampler, index: int, *, is_distinct: bool
) -> tuple[list[int], int]:
    """The walk from the root over what every node came to."""
    q, tokens, rows = tree_tensors(tree, p.shape[1])
    uniforms = torch.stack([keyed_uniforms(sampler, index + depth, tokens.shape[1] + 1) for depth in tree.depths()])
    found = RUN[by](p, q, tokens, rows, uniforms, is_distinct=is_distinct)
    path = [0]
    while (trial := int(found.accepted[path[-1]])) >= 0:
        path.append(tree.draws[path[-1]][trial].node)
    return path, int(found.bonus[path[-1]])


def traversal_by_kernel(by: str, tree: TokenTree, p: torch.Tensor, sampler: RequestSampler, index: int) -> tuple[list[int], int]:
    """Level after level for what the nodes owe, then from the leaves to the root; and the bonus with the number that is due then."""
    q, tokens, rows = tree_tensors(tree, p.shape[1])
    owed, depths = torch.zeros(len(tree.tokens), dtype=torch.float64), torch.tensor(tree.depths())
    owed[0] = 1.0
    uniforms = keyed_uniforms(sampler, index, 2 * len(tree.tokens))

    def run(own: torch.Tensor, uniform: float) -> Trials:
        numbers = torch.full((len(own), tokens.shape[1] + 1), uniform, dtype=torch.float64)
        return RUN[by](p[own], q, tokens[own], rows[own], numbers, owed=owed[own], is_decided=False, is_distinct=True)

    for depth in range(int(depths.max()) + 1):
        own = (depths == depth).nonzero()[:, 0]
        found = run(own, 0.5)
        for node, chances in zip(own.tolist(), found.acceptances, strict=True):
            for draw, chance in zip(tree.draws.get(node, []), chances, strict=False):
                owed[draw.node] = chance
    used = itertools.count()

    def visit(node: int) -> list[int] | None:
        for draw in tree.draws.get(node, []):
            if owed[draw.node] > 0 and (below := visit(draw.node)) is not None:
                return [node, *below]
        left = run(torch.tensor([node]), 0.5).owed
        return [node] if uniforms[next(used)] < left else None

    path = visit(0)
    assert path is not None
    return path, int(run(torch.tensor(path[-1:]), float(uniforms[next(used)])).bonus)


@pytest.mark.parametrize(
    ("verifier", "kind"), [(MssVerifier(), "drawn"), (WithoutReplacementVerifier(), "distinct"), (TraversalVerifier(), "distinct")]
)
@pytest.mark.parametrize(("by", "count"), [("kernel", 1), ("reference", 15)])
def test_verdicts_are_those_of_the_verifiers(by: str, count: int, verifier: Verifier, kind: str) -> None:
    accepted: Sequence[int] = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        logits = torch.from_numpy(rng.normal(size=(40, 7)) * 1.5).float()
        sampler = RequestSampler(SamplingParams(temperature=0.8), seed=seed, vocab_limit=7)

        def q_at(text: tuple[int, ...], seed: int = seed) -> Distribution:
            return to_distribution(np.random.default_rng([seed, *text, 1]).dirichlet(np.full(7, 0.8)).tolist())

        tree = tree_of(KINDS[kind], (2, 1) if by == "kernel" else (3, 2, 1), q_at)((0,), KeyedDraws(KeyedNoise(seed), index=0, stream=9))
        p = torch.zeros((len(tree.tokens), 7), dtype=torch.float64)
        for node in range(len(tree.tokens)):
            own = sampler.distribution(logits[node])
            p[node, own.ids] = torch.from_numpy(own.probs)
        wanted = verifier.verify(tree, logits.__getitem__, sampler, 50)
        if isinstance(verifier, TraversalVerifier):
            found = traversal_by_kernel(by, tree, p, sampler, 50)
        else:
            found = verdict_by_kernel(by, tree, p, sampler, 50, is_distinct=kind == "distinct")
        assert found == (list(wanted.path), wanted.bonus)
        accepted = [*accepted, len(found[0]) - 1]
    assert by == "kernel" or len(set(accepted)) >= 3
