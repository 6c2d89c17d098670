"""What drafters with a model have in common: trees grown level by level."""

import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.device_time import DeviceMoment
from flexspec.runtime.candidates import Int64
from flexspec.runtime.drafters.alpha import LearnedAlpha
from flexspec.runtime.drafters.base import Children, DraftRequest
from flexspec.runtime.drafters.children import ChildMaker, make_children
from flexspec.runtime.drafters.device_levels import DeviceLevels
from flexspec.runtime.drafters.draft_cache import DraftCache, Fed, Text
from flexspec.runtime.drafters.growing_draft import GrowingDraft
from flexspec.runtime.drafters.growing_trees import GrowingTrees
from flexspec.runtime.drafters.tree_growth import AdaptiveGrowth, HitRate, StaticGrowth, TreeGrowth
from flexspec.runtime.randomness import DRAFTER_STREAMS
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeSpec


@dataclass(kw_only=True)
class DrafterStats:
    """What a drafter was asked for.

    Attributes:
        proposals: trees asked for.
        fallbacks: those left empty because the text was out of the model's range or no room was left, or something that the
            model is fed was missing.
    """

    proposals: int = 0
    fallbacks: int = 0


class LevelDrafter(ABC):
    """Grows the trees level by level with a model's likeliest or drawn tokens, all requests in one pass a level.

    The model's cache follows the text. Where the text leaves the model's positions, vocabulary or cache the drafter drafts
    less or nothing, and counts that.

    Args:
        name: the drafter's name; its draws are keyed by it.
        model: the compiled draft model.
        max_requests: requests drafted for at once; others get no drafts.
        block_size: slots of a request: its text and the tree, the last level excepted.
        alpha: trust in the noise that the coupled verifier shares, when sampling: 0 drafts by the model's probabilities alone, 1
            is right for a model that equals the LLM, more for one that is too sure of itself. None learns it.
        token_ids: [columns of the logits] ascending, the tokens that a model with a trimmed vocabulary chooses from; it is fed
            any token. None for all, 0, 1, 2, …
    """

    # Tokens at the start of a text that the model is not fed.
    _num_skipped = 0

    def __init__(
        self,
        name: str,
        model: CompiledModel,
        *,
        max_requests: int,
        block_size: int,
        alpha: float | None = None,
        token_ids: Int64 | None = None,
    ) -> None:
        assert alpha is None or alpha >= 0, f"alpha={alpha}"
        assert token_ids is None or len(token_ids) == model.vocab_size, f"{model.vocab_size} logits of {len(token_ids)} tokens"
        assert token_ids is None or (token_ids[1:] > token_ids[:-1]).all(), "token ids that do not ascend"
        self.name = name
        self.stats = DrafterStats()
        self._model = model
        self._block_size = block_size
        self._cache = DraftCache(model, max_requests=max_requests, block_size=block_size)
        self._drafts: dict[int, GrowingDraft] = {}
        self._stream = DRAFTER_STREAMS + zlib.crc32(name.encode())
        self._fixed_alpha = alpha
        self._learned_alpha = LearnedAlpha()
        self._token_ids = token_ids
        self._hit_rate = HitRate()
        self._has_warned = False
        self._on_device: DeviceLevels | None = None
        if model.level_grower is not None:
            has_states = model.feature_size > 0
            self._on_device = DeviceLevels(
                model.level_grower, self._cache, token_ids=token_ids, skipped=self._num_skipped, has_states=has_states
            )

    def again(self, *, max_requests: int, block_size: int, alpha: float | None = None) -> Self:
        """The same drafter with a cache of its own, for another engine."""
        return type(self)(self.name, self._model, max_requests=max_requests, block_size=block_size, alpha=alpha, token_ids=self._token_ids)

    @property
    def num_bytes(self) -> int:
        """Bytes of the model's cache."""
        return self._cache.storage.num_bytes

    @property
    def device(self) -> torch.device:
        """Where the model's cache is."""
        return self._cache.storage.keys.device

    @property
    def alpha(self) -> float:
        """Trust in the noise, as given or as learned until now."""
        return self._learned_alpha.value if self._fixed_alpha is None else self._fixed_alpha

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`."""
        trees = self._begin(requests, on_device=False)
        assert not isinstance(trees, GrowingTrees)
        return trees

    def begin_on_device(self, requests: Sequence[DraftRequest]) -> GrowingTrees | list[TokenTree]:
        """As `DeviceDrafter.begin_on_device`."""
        return self._begin(requests, on_device=True)

    def _begin(self, requests: Sequence[DraftRequest], *, on_device: bool) -> GrowingTrees | list[TokenTree]:
        began = DeviceMoment(self.device)
        drafts, texts = self._started(requests)
        worth = max((request.worth for request in requests), default=0.0)
        growth = self._on_device.begin(drafts, worth) if self._on_device is not None else None
        elsewhere: Mapping[int, GrowingDraft] = growth.drafts if growth is not None else {}
        for fed in self._cache.feed_texts(texts, keeps_states=len(elsewhere) < len(drafts)):
            rest = growth.take(fed) if growth is not None else fed
            if rest is not None:
                self._expand(drafts, rest)
        if growth is not None:
            is_whole = on_device and 0 < len(drafts) == len(elsewhere)
            growth.start(keeps_nodes=is_whole)
            if is_whole:
                ended, finish = DeviceMoment(self.device), partial(self._finish, requests, drafts)
                return GrowingTrees(self.name, requests, growth, began=began, ended=ended, finish=finish)
        fault = growth.follow() if growth is not None else None
        self._grow({request_id: draft for request_id, draft in drafts.items() if request_id not in elsewhere}, worth)
        return self._finish(requests, drafts, fault)

    def _started(self, requests: Sequence[DraftRequest]) -> tuple[dict[int, GrowingDraft], Mapping[int, Text]]:
        """The drafts of requests that can have some, by request, and what the cache lacks of their texts."""
        depths = {request.request_id: self._depth(request) for request in requests}
        held: list[DraftRequest] = []
        for request in requests:
            if not depths[request.request_id]:
                # The text only grows, so it never comes back into range.
                self.release(request.request_id)
            elif self._cache.admit(request.request_id):
                held.append(request)
        texts = self._catch_up(held)
        drafts = {
            request.request_id: GrowingDraft(request, self._growth(request, depths[request.request_id]), self._maker(request))
            for request in held
            if request.request_id in texts
        }
        self.stats.proposals += len(requests)
        self.stats.fallbacks += len(requests) - len(drafts)
        return drafts, texts

    def _finish(self, requests: Sequence[DraftRequest], drafts: Mapping[int, GrowingDraft], fault: Exception | None) -> list[TokenTree]:
        self._warn(fault)
        self._drafts.update(drafts)
        return [
            drafts[request.request_id].growth.build() if request.request_id in drafts else TokenTree.root(request.tokens[-1])
            for request in requests
        ]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        self._drafts.pop(request_id, None)
        self._cache.release(request_id)

    @abstractmethod
    def _catch_up(self, requests: Sequence[DraftRequest]) -> Mapping[int, Text]:
        """Bring the cache in line with the texts.

        Returns:
            What it lacks of each, at least the last token; nothing for a request for which the model has to stand aside.
        """

    def _end_draft(self, request: DraftRequest) -> GrowingDraft | None:
        """The request's last draft, if there is one, after learning from what followed."""
        draft = self._drafts.pop(request.request_id, None)
        if draft is not None and self._fixed_alpha is None:
            for candidates, token, width in draft.choices(request.tokens):
                self._learned_alpha.observe(candidates, token, width)
        return draft

    def _can_be_fed(self, tokens: Sequence[int]) -> bool:
        return self._token_ids is not None or max(tokens) < self._model.vocab_size

    def _depth(self, request: DraftRequest) -> int:
        """Levels that positions and slots allow; the last one is not fed."""
        length, spec = len(request.tokens) - self._num_skipped, request.spec
        if not length:
            return 0
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
            room=self._block_size - (len(request.tokens) - self._num_skipped),
            chances=request.chances,
            hit_rate=self._hit_rate,
        )

    def _maker(self, request: DraftRequest) -> ChildMaker:
        sampler = request.sampler
        is_drawn = request.children.are_drawn and not sampler.greedy
        return ChildMaker(
            sampler=sampler,
            children=request.children,
            draws=sampler.draws(len(request.tokens), self._stream) if is_drawn else None,
            alpha=self.alpha,
            is_learning=self._fixed_alpha is None,
        )

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
            for fed in self._cache.feed_levels(levels):
                self._expand(growing, fed)

    def _expand(self, drafts: Mapping[int, GrowingDraft], fed: Fed) -> None:
        parents = [drafts[request_id].parents(places) for request_id, places in fed.places.items()]
        broods = make_children(fed.logits.cpu(), parents, self._token_ids)
        start = 0
        for request_id, places in fed.places.items():
            self._warn(drafts[request_id].expand(places, broods[start : start + len(places)]))
            start += len(places)

    def _warn(self, fault: Exception | None) -> None:
        if fault is not None and not self._has_warned:
            self._has_warned = True
            message = f"drafter {self.name!r} drafts nothing where its logits are not finite: {fault}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
