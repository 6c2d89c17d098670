"""What a search gives back: the choice with its prediction, what it is compared with, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flexspec.passes.search.space import AUTO, Workload
from flexspec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the cost equations say of a strategy; nothing here was measured by running it.

    Attributes:
        step_ms: from one step of a request to its next.
        tokens_per_step: of a request, the bonus token included.
        ms_per_token: of a request.
        tokens_per_s: of all requests.
        memory_gb_per_device: of the fullest device.
        parts: milliseconds of a step by what takes them.
        memory_parts: gigabytes of the fullest device by what they are for.
    """

    step_ms: float
    tokens_per_step: float
    ms_per_token: float
    tokens_per_s: float
    memory_gb_per_device: float
    parts: Mapping[str, float]
    memory_parts: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The fields of `predicted`."""
        content = asdict(self)
        del content["memory_parts"]
        return content


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One strategy and what is predicted of it.

    Attributes:
        strategy: as `flexspec.compile` takes it.
        batch: requests under way in all.
        requests: of the fullest micro-batch.
        predicted: its prediction.
        kv_cache_dtype: which is given, not chosen.
    """

    strategy: Strategy
    batch: int
    requests: int
    predicted: Prediction
    kv_cache_dtype: str = AUTO

    @property
    def choice(self) -> dict[str, Any]:
        """The fields of `choice`."""
        plan, tree = self.strategy.parallel, self.strategy.tree
        return {
            "dp": plan.dp,
            "pp": plan.pp,
            "tp": plan.tp,
            "micro_batches": plan.micro_batches,
            "tree_size": tree.num_nodes,
            "tree_depth": tree.depth,
            "drafters": list(self.strategy.drafters),
            "placement": dict(plan.placement),
            "stage_layers": list(plan.stage_layers),
            "partition": {place: list(names) for place, names in plan.partition.items()},
            "dtype": self.strategy.dtype,
            "kv_cache_dtype": self.kv_cache_dtype,
            "batch": self.batch,
            "requests_per_micro_batch": self.requests,
            "devices": plan.world_size,
        }

    def to_json(self) -> dict[str, Any]:
        """Choice and prediction side by side."""
        return {**self.choice, **self.predicted.to_json()}


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The choice, and why.

    Attributes:
        model: name of the model.
        hardware: name of the hardware.
        devices: that it has.
        workload: what the model is for.
        ranking: the best candidates, the choice first.
        baseline: one replica on one device without speculation; None if it does not fit.
        incremental: the best without speculation on any number of devices; None if the choice is all that there is.
        pareto: what nothing else is better than in time per token, tokens a second and devices at once.
        binding: what keeps the choice from being faster.
        notes: what the prediction rests on.
        candidates: strategies that were compared, each with its best cut into stages.
        pruned: those that were not costed in full, by reason.
        skipped: what the space leaves out, and why.
        seconds: of the search itself.
        capture_seconds: of reading models off their configurations.
    """

    model: str
    hardware: str
    devices: int
    workload: Workload
    ranking: Sequence[Candidate]
    baseline: Candidate | None
    incremental: Candidate | None
    pareto: Sequence[Candidate]
    binding: str
    notes: Sequence[str]
    candidates: int
    pruned: Mapping[str, int]
    skipped: Sequence[str]
    seconds: float
    capture_seconds: float

    @property
    def choice(self) -> Candidate:
        """The best candidate."""
        return self.ranking[0]

    @property
    def runner_up(self) -> Candidate | None:
        """The second best, which differs from the choice in more than tree and cut; None if there is no other."""
        return self.ranking[1] if len(self.ranking) > 1 else None

    @property
    def strategy(self) -> Strategy:
        """The choice, as `flexspec.compile` takes it."""
        return self.choice.strategy

    @property
    def unused_devices(self) -> int:
        """Devices that the choice leaves idle."""
        return self.devices - self.strategy.parallel.world_size

    def to_json(self) -> dict[str, Any]:
        """What `flexspec search --json` writes."""
        return {
            "choice": self.choice.choice,
            "predicted": self.choice.predicted.to_json(),
            "baseline": None if self.baseline is None else self.baseline.to_json(),
            "runner_up": None if self.runner_up is None else self.runner_up.to_json(),
            "pareto": [one.to_json() for one in self.pareto],
            "candidates": self.candidates,
            "pruned": dict(self.pruned),
            "unused_devices": self.unused_devices,
            "seconds": self.seconds,
        }

    def report(self) -> dict[str, Any]:
        """All of it: what an exported strategy carries for `flexspec search --explain`."""
        return {
            **self.to_json(),
            "model": self.model,
            "hardware": self.hardware,
            "devices": self.devices,
            "workload": asdict(self.workload),
            "memory_parts": dict(self.choice.predicted.memory_parts),
            "incremental": None if self.incremental is None else self.incremental.to_json(),
            "ranking": [one.to_json() for one in self.ranking],
            "binding": self.binding,
            "notes": list(self.notes),
            "skipped": list(self.skipped),
            "capture_seconds": self.capture_seconds,
        }
