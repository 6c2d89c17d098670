"""What code generation made of a graph, for `explain`, `inspect` and `bench`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class LoweringReport:
    """The choices of one lowering.

    Attributes:
        target: "cpu-native" or "cpu-torch".
        reason: why not a faster target; empty for the fastest.
        implementations: operator → what runs it; views, and what the native target computes once a pass from positions alone, left out.
        weight_bytes: memory of the weights as laid out for the target, weights shared with another model counted once.
        workspace_bytes: memory of activations.
    """

    target: str
    reason: str = ""
    implementations: dict[str, str] = field(default_factory=dict)
    weight_bytes: int = 0
    workspace_bytes: int = 0


class WeightStore:
    """Weights laid out for a target, shared by all models made from the same parameters."""

    def __init__(self) -> None:
        self._packed: dict[tuple[object, ...], object] = {}

    def get(self, key: tuple[object, ...]) -> object | None:
        """What was stored under `key`, or None."""
        return self._packed.get(key)

    def put(self, key: tuple[object, ...], value: object) -> None:
        """Store a weight that is not there yet."""
        assert key not in self._packed
        self._packed[key] = value
