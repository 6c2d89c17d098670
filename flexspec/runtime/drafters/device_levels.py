"""Chooses the requests whose trees can grow on the draft model's own device."""

import math
from collections.abc import Mapping

from flexspec.codegen.level_growth import LevelGrower
from flexspec.runtime.candidates import Int64
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.drafters.children import ChildMaker
from flexspec.runtime.drafters.depth_forecast import DepthForecast
from flexspec.runtime.drafters.device_growth import DeviceGrowth, GrowingModel, Limits
from flexspec.runtime.drafters.draft_cache import DraftCache
from flexspec.runtime.drafters.growing_draft import GrowingDraft


class DeviceLevels:
    """Chooses the requests whose trees can grow on the device, and how deep.

    Trees of requests with rules, and those whose children must be drawn from the model's distribution or chosen by it alone, are
    the host's, and so are trees that no kernel covers.

    Args:
        grower: of the model.
        cache: of the drafter.
        token_ids: as `LevelDrafter` takes them.
        skipped: tokens at the start of a text that the model is not fed.
        has_states: whether the model is fed its own hidden states.
    """

    def __init__(self, grower: LevelGrower, cache: DraftCache, *, token_ids: Int64 | None, skipped: int, has_states: bool) -> None:
        self._model = GrowingModel(
            grower=grower, cache=cache, token_ids=token_ids, skipped=skipped, has_states=has_states, forecast=DepthForecast()
        )

    def begin(self, drafts: Mapping[int, GrowingDraft], worth: float) -> DeviceGrowth:
        """What of `drafts` grows on the device.

        Args:
            drafts: of the requests, by their ids; they have nothing but roots.
            worth: tokens that another level of all trees must be expected to add.
        """
        limits: dict[int, Limits] = {}
        columns: int | None = None
        adaptive = sum(math.isfinite(draft.growth.gain) for draft in drafts.values())
        for request_id, draft in drafts.items():
            own, growth = draft.maker.sampler.columns(self._model.token_ids), draft.growth
            if _is_covered(draft.maker) and columns in (None, own):
                depth = growth.depth
                if math.isfinite(growth.gain):
                    depth = self._model.forecast.depth(adaptive, worth, depth)
                levels = growth.limits(depth)
                if self._model.grower.covers([nodes for _, nodes in levels], growth.most_children):
                    limits[request_id], columns = levels, own
        return DeviceGrowth(self._model, {request_id: drafts[request_id] for request_id in limits}, limits)


def _is_covered(maker: ChildMaker) -> bool:
    """Whether children are the best by the model's logits and, when sampling, the request's noise: nothing else is on the device."""
    return not maker.sampler.has_rules and (maker.children is Children.ANY or maker.sampler.greedy)
