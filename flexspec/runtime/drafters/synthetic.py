"""Drafts that are right with a given probability, whatever the model: for measuring an engine without a drafter's cost and luck."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.randomness import DRAFTER_STREAMS, KeyedNoise, to_uniform
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeLimits

SYNTHETIC = "synthetic"
_STREAM = DRAFTER_STREAMS + zlib.crc32(SYNTHETIC.encode())
_OFF_PATH = -1
"""In place of a place in the recorded text: a node that does not follow it."""


@dataclass(kw_only=True)
class _Followed:
    """A request that follows a recorded text: that text, which of its tokens are drafted right, and how far the request was compared."""

    output: Sequence[int]
    hits: Sequence[bool]
    compared: int = 0


class SyntheticDrafter:
    """Fills trees from recorded texts: the first child on the text's path is right with a fixed probability, all others are wrong.

    Whether a token of a text is drafted right is a function of the request's seed and the token's place, so that runs repeat.
    A request that has no recorded text, or whose text left it, gets no drafts.

    Args:
        acceptance: the probability, from 0 to 1.
    """

    def __init__(self, acceptance: float) -> None:
        assert 0 <= acceptance <= 1, f"acceptance={acceptance}"
        self.name = SYNTHETIC
        self.acceptance = acceptance
        self.reset_counts()
        self._outputs: dict[tuple[int, tuple[int, ...]], Sequence[int]] = {}
        self._followed: dict[int, _Followed | None] = {}

    def knows(self, prompt: Sequence[int], seed: int) -> bool:
        """Whether there is a recorded text for this prompt and seed."""
        return (seed, tuple(prompt)) in self._outputs

    def record(self, prompt: Sequence[int], seed: int, output: Sequence[int]) -> None:
        """Take `output` for what is emitted after `prompt` by a request of this seed."""
        self._outputs[seed, tuple(prompt)] = list(output)

    @property
    def lost_share(self) -> float:
        """Share of the trees asked for since `reset_counts` that had to be left empty, from 0 to 1."""
        return self._lost / self._proposals if self._proposals else 0.0

    def reset_counts(self) -> None:
        """Count anew what is asked for."""
        self._proposals = self._lost = 0

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`; children are chosen, not drawn."""
        return [self._propose(request) for request in requests]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        self._followed.pop(request_id, None)

    def _propose(self, request: DraftRequest) -> TokenTree:
        self._proposals += 1
        place = len(request.tokens) - request.prompt_length
        followed = self._follow(request, place)
        if followed is None:
            self._lost += 1
            return TokenTree.root(request.tokens[-1])
        spec, limit = request.spec, request.sampler.vocab_limit
        widths = (1,) * min(spec.depth, spec.budget) if isinstance(spec, TreeLimits) else spec.widths
        return _fill(request.tokens[-1], widths, followed, place, limit)

    def _follow(self, request: DraftRequest, place: int) -> _Followed | None:
        """The recorded text, if the first `place` tokens of the request's own are its beginning."""
        request_id, prompt_length = request.request_id, request.prompt_length
        if request_id not in self._followed:
            self._followed[request_id] = self._begin(request)
        followed = self._followed[request_id]
        if followed is None:
            return None
        if list(request.tokens[prompt_length + followed.compared :]) != followed.output[followed.compared : place]:
            self._followed[request_id] = None
            return None
        followed.compared = place
        return followed

    def _begin(self, request: DraftRequest) -> _Followed | None:
        seed = request.sampler.seed
        output = self._outputs.get((seed, tuple(request.tokens[: request.prompt_length])))
        if output is None:
            return None
        noise = to_uniform(KeyedNoise(seed, request.sampler.completion).bits(0, len(output), index=0, stream=_STREAM))
        return _Followed(output=output, hits=(noise < self.acceptance).tolist())


def _fill(root: int, widths: Sequence[int], followed: _Followed, place: int, limit: int) -> TokenTree:
    """The whole tree, level by level; `place` is that of the root's right child."""
    tokens, parents = [root], [-1]
    level = [(0, place)]
    for width in widths:
        below: list[tuple[int, int]] = []
        for node, at in level:
            right, hit = _what_follows(followed, at, tokens[node])
            children = [(right, at + 1)] if hit else []
            children += [((right + 1 + n) % limit, _OFF_PATH) for n in range(min(width, limit - 1) - len(children))]
            for token, child_at in children:
                below.append((len(tokens), child_at))
                tokens.append(token)
                parents.append(node)
        level = below
    return TokenTree(tokens=tokens, parents=parents)


def _what_follows(followed: _Followed, at: int, token: int) -> tuple[int, bool]:
    """The right token and whether it is drafted; off the path, or after the text's end, any token, which is not."""
    if at == _OFF_PATH or at >= len(followed.output):
        return token, False
    return followed.output[at], followed.hits[at]
