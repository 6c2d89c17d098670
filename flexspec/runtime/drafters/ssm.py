"""Drafts with a small speculative model (SSM)."""

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.errors import UsageError
from flexspec.runtime.drafters.alpha import LearnedAlpha
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.children import ChildMaker
from flexspec.runtime.drafters.growing_draft import GrowingDraft
from flexspec.runtime.drafters.ssm_cache import SsmCache
from flexspec.runtime.drafters.tree_growth import AdaptiveGrowth, HitRate, StaticGrowth, TreeGrowth
from flexspec.runtime.randomness import DRAFTER_STREAMS
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.token_tree import TokenTree
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


class SsmDrafter:
    """Grows the trees level by level with the SSM's likeliest or drawn tokens, all requests in one pass a level.

    The SSM's cache follows the text: what was drafted and became text is kept, the rest is dropped, what is missing is
    fed. Where the text leaves the SSM's positions, vocabulary or cache it drafts less or nothing, and counts that.

    Args:
        name: the drafter's name; its draws are keyed by it.
        model: the compiled SSM.
        max_requests: requests drafted for at once; others get no drafts.
        block_size: slots of a request: its text and the tree, the last level excepted.
        alpha: trust in the noise that the coupled verifier shares, when sampling: 0 drafts by the SSM's probabilities alone, 1 is
            right for an SSM that equals the LLM, more for one that is too sure of itself. None learns it.
    """

    def __init__(self, name: str, model: CompiledModel, *, max_requests: int, block_size: int, alpha: float | None = None) -> None:
        assert alpha is None or alpha >= 0, f"alpha={alpha}"
        self.name = name
        self.stats = DrafterStats()
        self._model = model
        self._block_size = block_size
        self._cache = SsmCache(model, max_requests=max_requests, block_size=block_size)
        self._drafts: dict[int, GrowingDraft] = {}
        self._stream = DRAFTER_STREAMS + zlib.crc32(name.encode())
        self._fixed_alpha = alpha
        self._learned_alpha = LearnedAlpha()
        self._hit_rate = HitRate()
        self._has_warned = False

    @property
    def num_bytes(self) -> int:
        """Bytes of the SSM's cache."""
        return self._cache.storage.num_bytes

    @property
    def alpha(self) -> float:
        """Trust in the noise, as given or as learned until now."""
        return self._learned_alpha.value if self._fixed_alpha is None else self._fixed_alpha

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`."""
        drafts: dict[int, GrowingDraft] = {}
        missing: dict[int, Sequence[int]] = {}
        for request in requests:
            depth = self._depth(request)
            if not depth:
                # The text only grows, so it never comes back into range.
                self.release(request.request_id)
                continue
            tokens = self._catch_up(request)
            if tokens is not None:
                drafts[request.request_id] = GrowingDraft(request, self._growth(request, depth), self._children(request))
                missing[request.request_id] = tokens
        self.stats.proposals += len(requests)
        self.stats.fallbacks += len(requests) - len(drafts)
        for request_id, logits in self._cache.feed_texts(missing):
            self._expand(drafts[request_id], 0, logits)
        self._grow(drafts, worth=max((request.worth for request in requests), default=0.0))
        self._drafts.update(drafts)
        return [
            drafts[request.request_id].growth.build() if request.request_id in drafts else TokenTree.root(request.tokens[-1])
            for request in requests
        ]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        self._drafts.pop(request_id, None)
        self._cache.release(request_id)

    def _depth(self, request: DraftRequest) -> int:
        """Levels that positions and slots allow; the last one is not fed."""
        length, spec = len(request.tokens), request.spec
        depth = spec.depth
        if self._model.max_positions is not None:
            depth = min(depth, self._model.max_positions - length + 1)
        if isinstance(spec, TreeSpec):
            while depth > 0 and length + sum(spec.level_sizes[: depth - 1]) > self._block_size:
                depth -= 1
        elif length > self._block_size:
            depth = 0
        return max(depth, 0)

    def _growth(self, request: DraftRequest, depth: int) -> TreeGrowth:
        root, spec = request.tokens[-1], request.spec
        if isinstance(spec, TreeSpec):
            return StaticGrowth(root, spec.widths[:depth])
        assert request.children is Children.ANY, f"adaptive trees are never sampled, but {request.children} was asked for"
        return AdaptiveGrowth(
            root,
            spec,
            depth=depth,
            room=self._block_size - len(request.tokens),
            chances=request.chances,
            hit_rate=self._hit_rate,
        )

    def _children(self, request: DraftRequest) -> ChildMaker:
        sampler = request.sampler
        is_drawn = request.children.are_drawn and not sampler.greedy
        return ChildMaker(
            sampler=sampler,
            children=request.children,
            draws=sampler.draws(len(request.tokens), self._stream) if is_drawn else None,
            alpha=self.alpha,
            is_learning=self._fixed_alpha is None,
        )

    def _catch_up(self, request: DraftRequest) -> Sequence[int] | None:
        """Bring the cache in line with the text; the tokens it lacks, or None if the SSM has to stand aside."""
        request_id, text = request.request_id, request.tokens
        draft = self._drafts.pop(request_id, None)
        if not self._cache.admit(request_id):
            return None
        path: Sequence[int] = ()
        if draft is not None:
            self._learn(draft, text)
            # The last token is always fed, for the logits after it.
            path = draft.accepted(text[self._cache.length(request_id) : -1])
        self._cache.settle(request_id, path, len(text) - 1)
        tokens = text[self._cache.length(request_id) :]
        return tokens if max(tokens) < self._model.vocab_size else None

    def _learn(self, draft: GrowingDraft, text: Sequence[int]) -> None:
        if self._fixed_alpha is None:
            for candidates, token, width in draft.choices(text):
                self._learned_alpha.observe(candidates, token, width)

    def _grow(self, drafts: dict[int, GrowingDraft], worth: float) -> None:
        """Feed and expand one level after the other, while that is expected to bring `worth` tokens."""
        growing = drafts
        while growing:
            for draft in growing.values():
                draft.growth.close_level()
            growing = {request_id: draft for request_id, draft in growing.items() if draft.growth.frontier}
            if not growing or sum(draft.growth.gain for draft in growing.values()) < worth:
                return
            levels = [draft.level() for draft in growing.values()]
            for request_id, place, logits in self._cache.feed_levels(levels):
                self._expand(growing[request_id], place, logits)

    def _expand(self, draft: GrowingDraft, place: int, logits: torch.Tensor) -> None:
        try:
            draft.expand(place, logits)
        except UsageError:
            return  # a drafted path that the request's rules do not allow, or can't do with; the text may never go there
        except NonFiniteLogitsError as error:
            if not self._has_warned:
                self._has_warned = True
                warnings.warn(
                    f"drafter {self.name!r} drafts nothing where its logits are not finite: {error}", RuntimeWarning, stacklevel=2
                )
