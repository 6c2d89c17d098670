"""Which devices work together: the slowest links that a shape's groups and messages use.

Ranks are numbered as distributed execution numbers them: a replica's ranks follow each other, the last stage's first, then those of the
stage before it, and so on; then the drafters with devices of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.hardware import Hardware

_TYPICAL_BYTES = 65536
"""Of a message that links are compared by."""


@dataclass(frozen=True)
class Links:
    """Which devices stand for a shape's groups: shapes with the same ones have the same links.

    Attributes:
        groups: for each stage, its tensor-parallel group.
        boundaries: two devices for every kind of link between neighbouring stages, and how many there are.
        worker: a driver and the furthest of its workers; None if it has none.
        drafter: a driver and the furthest of the drafters with devices of their own; None if there are none.
    """

    groups: tuple[tuple[int, ...], ...]
    boundaries: tuple[tuple[tuple[int, int], int], ...]
    worker: tuple[int, int] | None
    drafter: tuple[int, int] | None

    @classmethod
    def of(cls, groups: "Groups", *, dp: int, pp: int, tp: int, own: int) -> "Links":
        """Of a shape."""
        stages, size = pp * tp, pp * tp + own
        return cls(
            groups=tuple(groups.stages(dp=dp, pp=pp, tp=tp, own=own)),
            boundaries=tuple(groups.boundaries(dp=dp, pp=pp, tp=tp, own=own).items()),
            worker=groups.from_driver(dp=dp, size=size, to=range(1, stages)) if stages > 1 else None,
            drafter=groups.from_driver(dp=dp, size=size, to=range(stages, size)) if own else None,
        )


class Groups:
    """The groups of shapes on a description's devices."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self.collectives = Collectives(hardware)
        self._stage = cache(self._slowest_stage)
        self._cost = cache(lambda group: self.collectives.gather(group, _TYPICAL_BYTES))
        self._pairs: dict[tuple[float, float], tuple[int, int]] = {}
        self._same: dict[tuple[int, float, float], tuple[int, ...]] = {}

    def stages(self, *, dp: int, pp: int, tp: int, own: int) -> list[tuple[int, ...]]:
        """For each stage, the tensor-parallel group that is slowest of all replicas'; groups with equal links are the same one."""
        return [self._stage(dp, pp * tp + own, (pp - 1 - stage) * tp, tp) for stage in range(pp)]

    def boundaries(self, *, dp: int, pp: int, tp: int, own: int) -> dict[tuple[int, int], int]:
        """Two devices for every kind of link by which neighbouring stages send each other the residual stream, and how many do.

        Of all parts and replicas the slowest counts.
        """
        size = pp * tp + own
        found: dict[tuple[int, int], int] = {}
        for stage in range(pp - 1):
            offset = (pp - 1 - stage) * tp
            pairs = [(replica * size + offset + part, replica * size + offset - tp + part) for replica in range(dp) for part in range(tp)]
            pair = self._representative(max(pairs, key=self._cost))
            found[pair] = found.get(pair, 0) + 1
        return found

    def from_driver(self, *, dp: int, size: int, to: Sequence[int]) -> tuple[int, int]:
        """A replica's driver and, of its ranks `to`, the one that is furthest from it in any replica."""
        pairs = [(replica * size, replica * size + rank) for replica in range(dp) for rank in to]
        return self._representative(max(pairs, key=self._cost))

    def _representative(self, pair: tuple[int, int]) -> tuple[int, int]:
        """The first pair with such a link."""
        way = self.hardware.way(*pair)
        return self._pairs.setdefault((way.latency_us, way.bandwidth_gb_s), pair)

    def _slowest_stage(self, dp: int, size: int, offset: int, tp: int) -> tuple[int, ...]:
        groups = [tuple(range(replica * size + offset, replica * size + offset + tp)) for replica in range(dp)]
        worst = max(groups, key=self._cost)
        if tp == 1:
            return (0,)  # it has no links, so it is like every other
        link = self.hardware.slowest(worst)
        return self._same.setdefault((tp, link.latency_us, link.bandwidth_gb_s), worst)
