"""How a model runs on several devices: the part of a strategy that the search finds and distributed execution follows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flexspec.errors import UsageError

BESIDE = "beside the model"
OWN_DEVICE = "own device"
DEFAULT_RANK_TIMEOUT_S = 20.0
"""Of silence, after which a rank counts as hanging."""


@dataclass(frozen=True, kw_only=True)
class ParallelPlan:
    """Replicas of pipelines of tensor-parallel groups.

    Attributes:
        dp: replicas, which share the requests.
        pp: pipeline stages of a replica.
        tp: devices that share the work of a stage.
        micro_batches: groups of a replica's requests that are under way in its pipeline at once.
        stage_layers: decoder layers of each stage, `pp` of them.
        partition: for each place of the model, `embedding`, `head` and every kind of block (`block_0`, …), the names of its operators'
            partitionings in the order of its operators; {} if nothing is divided.
        placement: where each drafter runs, `beside the model` or `own device`; a drafter that is not named runs beside it.
        model: fingerprint of the model that this was found for; "" for any.

    Raises:
        UsageError: if a value is not allowed, or values contradict each other.
    """

    dp: int = 1
    pp: int = 1
    tp: int = 1
    micro_batches: int = 1
    stage_layers: tuple[int, ...] = ()
    partition: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    placement: Mapping[str, str] = field(default_factory=dict)
    model: str = ""

    def __post_init__(self) -> None:
        for name in ("dp", "pp", "tp", "micro_batches"):
            _require_count(name, getattr(self, name))
        layers = self.stage_layers
        if not isinstance(layers, tuple | list):
            raise UsageError(f"stage_layers={layers!r} is not allowed: give a list of whole numbers, one for each stage")
        for count in layers:
            _require_count("stage_layers", count)
        if layers and len(layers) != self.pp:
            raise UsageError(f"stage_layers={list(layers)} has {len(layers)} stages where pp={self.pp}: give one number for each stage")
        object.__setattr__(self, "stage_layers", tuple(layers))
        if not isinstance(self.partition, Mapping) or not all(map(_is_names, self.partition.values())):
            raise UsageError(f"partition={self.partition!r} is not allowed: give lists of partitionings by the place they are for")
        object.__setattr__(self, "partition", {place: tuple(names) for place, names in self.partition.items()})
        if not isinstance(self.placement, Mapping) or any(where not in (BESIDE, OWN_DEVICE) for where in self.placement.values()):
            raise UsageError(f"placement={self.placement!r} is not allowed: give {BESIDE!r} or {OWN_DEVICE!r} for each drafter")
        if not isinstance(self.model, str):
            raise UsageError(f"model={self.model!r} is not allowed: give the fingerprint of a model")

    @property
    def replica_size(self) -> int:
        """Devices of one replica of the model, those of drafters included that have their own."""
        return self.pp * self.tp + sum(where == OWN_DEVICE for where in self.placement.values())

    @property
    def world_size(self) -> int:
        """Devices in all."""
        return self.dp * self.replica_size


def _is_names(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(name, str) for name in value)


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r} is not allowed: give a whole number of at least 1")
