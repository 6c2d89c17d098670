"""A part of the check: rows of figures that come one after the other, within a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import monotonic

import torch

from flexspec.codegen.device_check.sizes import Sizes

Row = dict[str, str | int | float | bool | None]
"""Figures by name; one called "ok" says whether what was checked holds, and None is a time that a dry run leaves out."""


@dataclass(kw_only=True)
class Context:
    """What a part works with.

    Attributes:
        device: where it runs; a CPU in a dry run.
        sizes: of what is run.
        deadline: when it should end, by `monotonic`.
        left_out: what it did not do, and why.
    """

    device: torch.device
    sizes: Sizes
    deadline: float
    left_out: list[str] = field(default_factory=list)

    @property
    def is_dry(self) -> bool:
        """Whether references run in the place of kernels, and times mean nothing."""
        return self.device.type != "cuda"

    def has_time(self, what: str) -> bool:
        """Whether there is time for `what`; if not, that is noted."""
        if monotonic() < self.deadline:
            return True
        self.leave_out(what, "no time was left")
        return False

    def leave_out(self, what: str, reason: str) -> None:
        """Note that `what` was not done."""
        self.left_out.append(f"{what}: {reason}")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part.

    Attributes:
        name: in the report.
        title: a line that is printed above its rows.
        seconds: what it may take, if those before it took what they may.
        rows: does it; what came before a failure stays in the report.
    """

    name: str
    title: str
    seconds: float
    rows: Callable[[Context], Iterator[Row]]
