"""The walk that follows plain decoding through the tree: greedy at temperature 0, coupled otherwise."""

from collections.abc import Callable

import torch

from flexspec.runtime.drafters.base import Children
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict


class WalkVerifier:
    """Goes from node to node by the token that plain decoding would choose there, while the tree has it.

    Plain sampling is a function of the seed, the position and the text alone (the noise is keyed), so what comes out is
    plain's sequence whatever the tree: the walk leaves a node only with plain's own choice there. At temperature 0 it is
    greedy verification (SpecInfer, algorithm 2).
    """

    children = Children.ANY

    def __init__(self, name: str) -> None:
        self.name = name

    def verify(self, tree: TokenTree, logits: Callable[[int], torch.Tensor], sampler: RequestSampler, index: int) -> Verdict:
        """As `Verifier.verify`."""
        children = tree.children()
        path = [0]
        tokens: list[int] = []
        while True:
            token = sampler.pick(logits(path[-1]), index + len(tokens), tokens)
            child = children[path[-1]].get(token)
            if child is None:
                return Verdict(path=path, bonus=token)
            path.append(child)
            tokens.append(token)
