"""Trees of which the device decides without chance of its own: those that follow plain decoding."""

from collections.abc import Sequence

import numpy as np

from flexspec.codegen.tree_walk import WalkedTrees, Walks
from flexspec.codegen.truncation import Truncation
from flexspec.config import SamplingParams
from flexspec.runtime.request import Request
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.walk import WalkVerifier

_MOST = 2**31 - 1


def can_walk(request: Request) -> bool:
    """Whether a request's trees are walked as plain decoding goes, and the device can do it."""
    return type(request.verifier) is WalkVerifier and is_decidable(request)


def is_decidable(request: Request) -> bool:
    """Whether a request's tokens depend on the logits, its own numbers and its seed alone, and nobody wants to see logits."""
    return not request.sampler.has_rules and request.sampler.params.logprobs is None


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
        truncation=truncation([sampler.params for sampler in samplers]),
    )


def truncation(params: Sequence[SamplingParams]) -> Truncation | None:
    """What requests cut, in numbers; None if none of them cuts anything."""
    if not any(_truncates(one) for one in params):
        return None
    return Truncation(
        top_ks=np.array([min(one.top_k, _MOST) for one in params], dtype=np.int32),
        top_ps=np.array([one.top_p for one in params]),
        min_ps=np.array([one.min_p for one in params]),
    )


def _truncates(params: SamplingParams) -> bool:
    return not params.greedy and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0)


def walked_verdict(walks: Walks, row: int) -> Verdict | None:
    """What the device says of a tree; None if the logits that it met are not finite."""
    bonus = int(walks.bonus[row])
    return None if bonus < 0 else Verdict(path=walks.paths[row, : walks.lengths[row]].tolist(), bonus=bonus)
