"""What code generation made of a graph, for `explain`, `inspect` and `bench`."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class LoweringReport:
    """The choices of one lowering.

    Attributes:
        target: "cpu-native" or "cpu-torch".
        reason: why not a faster target; empty for the fastest.
        compile_failed: whether the reason is a compiler that failed.
        implementations: operator → what runs it; views, and what the native target computes once a pass from positions alone, left out.
        weight_bytes: memory of the weights as laid out for the target, weights shared with another model counted once.
        workspace_bytes: memory of activations.
    """

    target: str
    reason: str = ""
    compile_failed: bool = False
    implementations: dict[str, str] = field(default_factory=dict)
    weight_bytes: int = 0
    workspace_bytes: int = 0
