"""Drafts with a small speculative model (SSM)."""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.ssm_cache import Level, SsmCache
from flexspec.runtime.draws import Draws
from flexspec.runtime.randomness import DRAFTER_STREAMS
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.tree_shape import TreeSpec


@dataclass(kw_only=True)
class DrafterStats:
    """What a drafter was asked for.

    Attributes:
        proposals: trees asked for.
        fallbacks: those left empty because the text was out of the model's range or no room was left.
    """

    proposals: int = 0
    fallbacks: int = 0


class _Draft:
    """One request's tree while it grows; a node's handle h > 0 is also its place h - 1 in the request's tail."""

    def __init__(self, request: DraftRequest, depth: int, draws: Draws | None) -> None:
        self.request = request
        self.depth = depth
        self.draws = draws
        self.builder = TreeBuilder(request.tokens[-1])
        self.masks = [0]
        self.frontier = range(0, 1)
        self.num_fed = 0

    def expand(self, node: int, level: int, logits: torch.Tensor, alpha: float) -> None:
        """Give `node`, at depth `level`, its children."""
        sampler = self.request.sampler
        width = self.request.spec.widths[level]
        if self.draws is None:
            ids, _ = sampler.perturbed_top(logits, len(self.request.tokens) + level, width, alpha)
            for token in ids.tolist():
                self.builder.add(node, token)
        else:
            q = sampler.distribution(logits)
            for _ in range(width):
                self.builder.add(node, self.draws.choice(q), q)

    def close_level(self) -> None:
        """Make the children just added the frontier."""
        first = self.frontier.stop
        self.frontier = range(first, len(self.builder))
        self.masks += [self.masks[self.builder.parents[node]] | 1 << (node - 1) for node in self.frontier]

    def accepted(self, tokens: Sequence[int]) -> list[int]:
        """Places in the tail of the fed nodes that follow the root along `tokens`."""
        node, path = 0, []
        for token in tokens:
            child = self.builder.child(node, token)
            if child is None or child > self.num_fed:
                break
            path.append(child - 1)
            node = child
        return path


class SsmDrafter:
    """Expands the tree level by level with the SSM's likeliest tokens, all requests in one pass a level.

    The SSM's cache follows the text: what was drafted and became text is kept, the rest is dropped, what is missing is
    fed. Where the text leaves the SSM's positions, vocabulary or cache it drafts less or nothing, and counts that.

    Args:
        name: the drafter's name; its draws are keyed by it.
        model: the compiled SSM.
        max_requests: requests drafted for at once; others get no drafts.
        block_size: slots of a request: its text and the tree, the last level excepted.
        alpha: trust in the noise that the coupled verifier shares, when sampling: 0 drafts by the SSM's probabilities alone, 1 is
            right for an SSM that equals the LLM.
    """

    def __init__(self, name: str, model: CompiledModel, *, max_requests: int, block_size: int, alpha: float = 0.5) -> None:
        self.name = name
        self.alpha = alpha
        self.stats = DrafterStats()
        self._model = model
        self._block_size = block_size
        self._cache = SsmCache(model, max_requests=max_requests, block_size=block_size)
        self._drafts: dict[int, _Draft] = {}
        self._stream = DRAFTER_STREAMS + zlib.crc32(name.encode())
        self._has_warned = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the SSM's cache."""
        return self._cache.storage.num_bytes

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`: the children at a node are drawn if the request asks for draws, else its best tokens."""
        drafts: dict[int, _Draft] = {}
        missing: dict[int, Sequence[int]] = {}
        for request in requests:
            tokens = self._catch_up(request)
            depth = self._depth(request)
            if tokens is not None and depth:
                draws = (
                    request.sampler.draws(len(request.tokens), self._stream)
                    if request.children.are_drawn and not request.sampler.greedy
                    else None
                )
                drafts[request.request_id] = _Draft(request, depth, draws)
                missing[request.request_id] = tokens
        self.stats.proposals += len(requests)
        self.stats.fallbacks += len(requests) - len(drafts)
        for request_id, logits in self._cache.feed_texts(missing):
            self._expand(drafts[request_id], 0, 0, logits)
        for level in range(1, max((draft.depth for draft in drafts.values()), default=0)):
            self._grow(drafts, level)
        self._drafts.update(drafts)
        return [
            drafts[request.request_id].builder.build() if request.request_id in drafts else TokenTree.root(request.tokens[-1])
            for request in requests
        ]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        self._drafts.pop(request_id, None)
        self._cache.release(request_id)

    def _depth(self, request: DraftRequest) -> int:
        """Levels that positions and slots allow; the last one is not fed."""
        length = len(request.tokens)
        depth = len(request.spec.widths)
        if self._model.max_positions is not None:
            depth = min(depth, self._model.max_positions - length + 1)
        while depth > 0 and length + sum(TreeSpec(widths=request.spec.widths).level_sizes[: depth - 1]) > self._block_size:
            depth -= 1
        return max(depth, 0)

    def _catch_up(self, request: DraftRequest) -> Sequence[int] | None:
        """Bring the cache in line with the text; the tokens it lacks, or None if the SSM has to stand aside."""
        request_id, text = request.request_id, request.tokens
        if not self._depth(request):
            # The text only grows, so it never comes back into range.
            self.release(request_id)
            return None
        if not self._cache.admit(request_id):
            return None
        draft = self._drafts.pop(request_id, None)
        # The last token is always fed, for the logits after it.
        path = draft.accepted(text[self._cache.length(request_id) : -1]) if draft is not None else []
        self._cache.settle(request_id, path, len(text) - 1)
        tokens = text[self._cache.length(request_id) :]
        return tokens if max(tokens) < self._model.vocab_size else None

    def _grow(self, drafts: dict[int, _Draft], level: int) -> None:
        """Feed the frontiers and expand them."""
        levels = []
        for request_id, draft in drafts.items():
            draft.close_level()
            nodes = draft.frontier
            if nodes and draft.depth > level:
                tokens, masks = draft.builder.tokens[nodes.start :], draft.masks[nodes.start :]
                levels.append(Level(request_id=request_id, depth=level, first=nodes.start - 1, tokens=tokens, masks=masks))
                draft.num_fed = len(draft.builder) - 1
        for request_id, place, logits in self._cache.feed_levels(levels):
            draft = drafts[request_id]
            self._expand(draft, draft.frontier[place], level, logits)

    def _expand(self, draft: _Draft, node: int, level: int, logits: torch.Tensor) -> None:
        try:
            draft.expand(node, level, logits, self.alpha)
        except NonFiniteLogitsError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"drafter {self.name!r} drafts nothing where its logits are not finite: {error}", RuntimeWarning, stacklevel=2
                )
