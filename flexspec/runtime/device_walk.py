"""Trees of which the device decides: those that follow plain decoding with nothing but a temperature."""

from collections.abc import Sequence

import numpy as np

from flexspec.codegen.tree_walk import WalkedTrees, Walks
from flexspec.runtime.request import Request
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.walk import WalkVerifier


def can_walk(request: Request) -> bool:
    """Whether a request's tokens depend on the logits, its temperature and its seed alone."""
    sampler = request.sampler
    params = sampler.params
    is_whole = params.greedy or (params.top_k == 0 and params.top_p == 1 and params.min_p == 0)
    return isinstance(request.verifier, WalkVerifier) and not sampler.has_rules and params.logprobs is None and is_whole


def walked_trees(trees: Sequence[tuple[Request, TokenTree]]) -> WalkedTrees:
    """Describe trees, whose rows of logits follow each other, to the device."""
    sizes = [len(tree.tokens) for _, tree in trees]
    samplers = [request.sampler for request, _ in trees]
    return WalkedTrees(
        tokens=np.array([token for _, tree in trees for token in tree.tokens], dtype=np.int32),
        parents=np.array([parent for _, tree in trees for parent in tree.parents], dtype=np.int32),
        node_starts=np.cumsum([0, *sizes], dtype=np.int32),
        seeds=np.array([sampler.seed for sampler in samplers], dtype=np.uint64),
        completions=np.array([sampler.completion for sampler in samplers], dtype=np.int32),
        indices=np.array([len(request.tokens) for request, _ in trees], dtype=np.int32),
        temperatures=np.array([sampler.params.temperature for sampler in samplers]),
        vocab_limits=np.array([sampler.vocab_limit for sampler in samplers], dtype=np.int32),
    )


def walked_verdict(walks: Walks, row: int) -> Verdict | None:
    """What the device says of a tree; None if the logits that it met are not finite."""
    bonus = int(walks.bonus[row])
    return None if bonus < 0 else Verdict(path=walks.paths[row, : walks.lengths[row]].tolist(), bonus=bonus)
