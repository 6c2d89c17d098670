"""Speculative decoding in a few lines, without batching or an LLM cache: what drafters and verifiers do together."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verifier
from flexspec.runtime.verifiers.walk import WalkVerifier
from flexspec.tree_shape import TreeSpec
from toy_model import ToyModel


@dataclass(kw_only=True)
class Decoding:
    """A request as it is decoded.

    Attributes:
        request_id: its name.
        text: prompt and answer.
        sampler: how it chooses.
        accepted: for each step, the number of accepted drafts.
        trees: the trees of the steps.
    """

    request_id: int
    text: list[int]
    sampler: RequestSampler
    accepted: list[int] = field(default_factory=list)
    trees: list[TokenTree] = field(default_factory=list)


def speculate(
    target: ToyModel,
    drafter: Drafter,
    decodings: Sequence[Decoding],
    widths: Sequence[int],
    *,
    steps: int,
    verifier: Verifier | None = None,
) -> None:
    """Advance all `decodings` by `steps` steps; a batch drafts together."""
    verifier = verifier or WalkVerifier("coupled")
    for _ in range(steps):
        requests = [
            DraftRequest(
                request_id=decoding.request_id,
                tokens=decoding.text,
                sampler=decoding.sampler,
                spec=TreeSpec(widths=tuple(widths)),
                children=verifier.children,
            )
            for decoding in decodings
        ]
        for decoding, tree in zip(decodings, drafter.propose(requests), strict=True):
            assert tree.tokens[0] == decoding.text[-1]
            advance(target, verifier, decoding, tree)


def advance(target: ToyModel, verifier: Verifier, decoding: Decoding, tree: TokenTree) -> None:
    """One step of one request with the tree given."""
    paths = [decoding.text]
    for node in range(1, len(tree.tokens)):
        paths.append([*paths[tree.parents[node]], tree.tokens[node]])
    verdict = verifier.verify(tree, lambda node: torch.from_numpy(target.logits_of(paths[node])), decoding.sampler, len(decoding.text))
    decoding.text = [*paths[verdict.path[-1]], verdict.bonus]
    decoding.accepted.append(len(verdict.path) - 1)
    decoding.trees.append(tree)


def plain(target: ToyModel, sampler: RequestSampler, text: Sequence[int], length: int) -> list[int]:
    """The text continued by plain decoding to `length` tokens."""
    text = list(text)
    while len(text) < length:
        text.append(sampler.pick(torch.from_numpy(target.logits_of(text)), len(text)))
    return text
