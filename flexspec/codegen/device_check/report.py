"""The report of a check, in JSON: whole after every part, whatever happens in the next."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flexspec.codegen.device_check.part import Row

REPORT_VERSION = 1


@dataclass(kw_only=True)
class PartReport:
    """What a part found.

    Attributes:
        name: the part's.
        rows: its figures.
        left_out: what was not done, and why.
        error: what ended it; None if it went through.
        seconds: it took.
    """

    name: str
    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    error: str | None = None
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether it went through and all that it checked holds."""
        return self.error is None and all(row.get("ok", True) for row in self.rows)


@dataclass(kw_only=True)
class Report:
    """A whole check.

    Attributes:
        date: when it began, in UTC.
        is_dry: whether references ran in the place of kernels, on a CPU.
        machine: what it was run on.
        parts: in order.
        seconds: it took.
    """

    date: str
    is_dry: bool
    machine: dict[str, Any]
    parts: list[PartReport] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether all parts are."""
        return all(part.ok for part in self.parts)

    def write(self, path: Path) -> None:
        """Write it to a file."""
        content = {
            "version": REPORT_VERSION,
            "date": self.date,
            "dry_run": self.is_dry,
            "ok": self.ok,
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
            "parts": [
                asdict(part) | {"ok": part.ok, "seconds": round(part.seconds, 1), "rows": _in_json(part.rows)} for part in self.parts
            ],
        }
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def _in_json(rows: list[Row]) -> list[Row]:
    """JSON has no infinite numbers."""
    return [
        {name: str(value) if isinstance(value, float) and not math.isfinite(value) else value for name, value in row.items()}
        for row in rows
    ]
