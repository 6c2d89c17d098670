"""A strategy: how a model and its drafters run on given hardware; versioned JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError
from flexspec.parallel import ParallelPlan
from flexspec.tree_shape import PLAIN, Tree, TreeLimits, parse_tree

STRATEGY_VERSION = 2
_ONE_DEVICE_VERSION = 1
"""Before strategies were for several devices."""
_REPORT = "search"
"""The field of a file in which the search says why it chose a strategy; no part of the strategy itself."""
MAX_PASS_TOKENS = 65536
"""The largest bucket allowed: a pass takes memory by its tokens, warm-up time."""
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """What every device needs to know.

    Attributes:
        dtype: of weights and KV cache, `float32`, `bfloat16`, or on a GPU `float16`.
        drafters: SSMs and model-free drafters, by the names `flexspec.compile` takes.
        tree: widths of a static token tree, none for plain decoding, or limits of adaptive ones; anything that `parse_tree` reads.
        verifier: `auto`, or the name of one.
        max_batch: most requests that run at once.
        max_len: most tokens of a request, prompt included; None for what the model allows.
        buckets: sizes of a pass, in tokens, that warm-up runs once; no pass is larger than the last, at most 65536.
        parallel: how the model is divided over devices, a `ParallelPlan` or its fields as a mapping; one device if it is not given.

    Raises:
        UsageError: if a value is not allowed.
    """

    dtype: str
    drafters: tuple[str, ...] = ()
    tree: Tree = PLAIN
    verifier: str = "auto"
    max_batch: int = 8
    max_len: int | None = None
    buckets: tuple[int, ...] = (1, 4, 16, 64, 512)
    parallel: ParallelPlan = field(default_factory=ParallelPlan)

    def __post_init__(self) -> None:
        for name in ("drafters", "buckets"):
            object.__setattr__(self, name, _as_tuple(name, getattr(self, name)))
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype={self.dtype!r} is not allowed: give one of {', '.join(DTYPES)}")
        object.__setattr__(self, "tree", parse_tree(self.tree))
        _require_count("max_batch", self.max_batch)
        if self.max_len is not None:
            _require_count("max_len", self.max_len)
        for size in self.buckets:
            _require_count("buckets", size)
        if not self.buckets or list(self.buckets) != sorted(set(self.buckets)):
            raise UsageError(f"buckets={list(self.buckets)} is not allowed: give ascending numbers of tokens, for example [1, 16, 512]")
        if self.buckets[-1] > MAX_PASS_TOKENS:
            raise UsageError(f"buckets={list(self.buckets)} is not allowed: give numbers of tokens of at most {MAX_PASS_TOKENS}")
        object.__setattr__(self, "parallel", _as_plan(self.parallel))

    def save(self, path: str | Path, report: Mapping[str, Any] | None = None) -> None:
        """Write the strategy as JSON.

        Args:
            path: of the file.
            report: of the search that found it, for `flexspec search --explain`; loading leaves it out.

        Raises:
            UsageError: if that can't be done.
        """
        content = {"version": STRATEGY_VERSION, **asdict(self), "tree": tree_as_json(self.tree)}
        if report is not None:
            content[_REPORT] = report
        try:
            Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:  # of a name that no file can have
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"strategy can't be written to {str(path)!r}: {reason}; give a path that can be") from None

    def replaced(self, **changes: Any) -> "Strategy":
        """A copy with other values; None leaves a value as it is."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


def load_strategy(path: str | Path) -> Strategy:
    """Read a strategy that `Strategy.save` wrote, also one of version 1, which is for one device.

    Raises:
        UsageError: if the file can't be read, isn't a strategy, or is of a later version.
    """
    return read_strategy(path)[0]


def read_strategy(path: str | Path) -> tuple[Strategy, dict[str, Any] | None]:
    """A strategy, and the report of the search that found it; None if no search did.

    Raises:
        UsageError: as `load_strategy` does.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"strategy file {str(path)!r} can't be read: {error.strerror}; give a file that `Strategy.save` wrote") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"strategy file {str(path)!r} is not JSON ({error}): give one that Strategy.save or flexspec search --export-strategy wrote"
        ) from None
    version = content.pop("version", None) if isinstance(content, dict) else None
    if version not in (_ONE_DEVICE_VERSION, STRATEGY_VERSION):
        raise UsageError(f"strategy file {str(path)!r} is not a strategy of version {STRATEGY_VERSION}, or an earlier one")
    report = content.pop(_REPORT, None)
    known = {part.name for part in fields(Strategy)} - ({"parallel"} if version == _ONE_DEVICE_VERSION else set())
    unknown = sorted(set(content) - known)
    if unknown or "dtype" not in content:
        raise UsageError(f"strategy file {str(path)!r}: unknown or missing fields {unknown or ['dtype']}; the fields are {sorted(known)}")
    try:
        return Strategy(**content), report if isinstance(report, dict) else None
    except UsageError as error:
        raise UsageError(f"strategy file {str(path)!r}: {error}") from None


def tree_as_json(tree: Tree) -> list[int] | dict[str, int]:
    """Widths, or limits by name."""
    return asdict(tree) if isinstance(tree, TreeLimits) else list(tree.widths)


def _as_plan(plan: Any) -> ParallelPlan:
    if isinstance(plan, ParallelPlan):
        return plan
    if not isinstance(plan, Mapping):
        raise UsageError(f"parallel={plan!r} is not allowed: give a ParallelPlan, or its fields by name")
    known = [part.name for part in fields(ParallelPlan)]
    unknown = [name for name in plan if name not in known]
    if unknown:
        raise UsageError(f"parallel: {unknown[0]!r} is no field of a plan: the fields are {', '.join(known)}")
    return ParallelPlan(**plan)


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UsageError(f"{name}={value!r} is not allowed: give a list")
    return tuple(value)


def _require_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r} is not allowed: give a whole number of at least 1")
