"""Drafters for tests that need no cache of their own."""

from collections.abc import Sequence

import torch

from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.token_tree import Draw, TokenTree
from toy_model import ToyModel


class ToyDrafter:
    """Fills the spec with the likeliest children by a toy model's own logits and the request's shared noise.

    With the LLM's own model it accepts everything; with a noisy copy part of it.
    """

    name = "toy"

    def __init__(self, model: ToyModel) -> None:
        self.model = model
        self.requests: list[DraftRequest] = []
        self.released: list[int] = []

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        self.requests += requests
        return [self._tree(request) for request in requests]

    def release(self, request_id: int) -> None:
        self.released.append(request_id)

    def _tree(self, request: DraftRequest) -> TokenTree:
        tokens, parents = [request.tokens[-1]], [-1]
        draws: dict[int, list[Draw]] = {}
        frontier = [(0, list(request.tokens))]
        for width in request.spec.widths:
            level = []
            for node, path in frontier:
                logits = torch.from_numpy(self.model.logits_of(path))
                ids, _ = request.sampler.perturbed_top(logits, len(path), width, 1.0)
                for token in ids.tolist():
                    draws.setdefault(node, []).append(Draw(node=len(tokens), q=None))
                    level.append((len(tokens), [*path, token]))
                    tokens.append(token)
                    parents.append(node)
            frontier = level
        return TokenTree(tokens=tokens, parents=parents, draws=draws if request.children is not Children.ANY else {})


class FixedDrafter:
    """Returns, for any request, the tree that a function makes of its text."""

    name = "fixed"

    def __init__(self, make_tree) -> None:
        self._make_tree = make_tree

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        return [self._make_tree(list(request.tokens)) for request in requests]

    def release(self, request_id: int) -> None:
        pass


class Merged:
    """Several drafters as one."""

    def __init__(self, drafters) -> None:
        self.name = "+".join(drafter.name for drafter in drafters)
        self._drafters = drafters

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        each = [(drafter.name, drafter.propose(requests)) for drafter in self._drafters]
        return [merge_trees(request.tokens[-1], [(name, trees[place]) for name, trees in each]) for place, request in enumerate(requests)]

    def release(self, request_id: int) -> None:
        for drafter in self._drafters:
            drafter.release(request_id)
