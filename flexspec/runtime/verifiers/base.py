"""What every verifier offers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from flexspec.runtime.drafters.base import Children
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a step says: the accepted nodes and the LLM's own token after them.

    Attributes:
        path: accepted nodes from the root (node 0, always there) down.
        bonus: the token after the last accepted node.
    """

    path: Sequence[int]
    bonus: int


class Verifier(Protocol):
    """Walks a tree with the LLM's logits at its nodes.

    Attributes:
        name: its name.
        children: what it needs a node's children to be.
    """

    name: str
    children: Children

    def verify(self, tree: TokenTree, logits: Callable[[int], torch.Tensor], sampler: RequestSampler, index: int) -> Verdict:
        """Accept a path of `tree`.

        Args:
            tree: the drafts; node 0 is the last token of the text.
            logits: gives the LLM's logits at a node, float32 [vocab], contiguous; called only for nodes the walk reaches.
            sampler: the request's way of choosing a token.
            index: position in the whole text (prompt included, counted from 0) of the token that follows node 0.
        """
        ...
