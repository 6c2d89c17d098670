"""What the ranks are asked to measure, as a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flexspec.calibration.report.sizes import Sizes
from flexspec.parallel import ParallelPlan


@dataclass(frozen=True, kw_only=True)
class Run:
    """A strategy to measure.

    Attributes:
        batch: requests at once.
        tree: drafted tokens of a chain.
        plan: of the model.
    """

    batch: int
    tree: int
    plan: ParallelPlan


@dataclass(frozen=True, kw_only=True)
class JobFile:
    """All that is measured of one model.

    Attributes:
        model: what it is loaded from.
        dtype: of weights and KV cache.
        sizes: how much is measured.
        runs: the strategies.
    """

    model: str
    dtype: str
    sizes: Sizes
    runs: Sequence[Run]

    def save(self, path: Path) -> None:
        """Write it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")


def load_job(path: Path) -> JobFile:
    """Read what `JobFile.save` wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in content["sizes"].items()}
    return JobFile(model=content["model"], dtype=content["dtype"], sizes=Sizes(**given), runs=[_run(one) for one in content["runs"]])


def _run(content: Mapping[str, object]) -> Run:
    values = dict(content)
    return Run(**{**values, "plan": ParallelPlan(**values["plan"])})  # type: ignore[arg-type]
