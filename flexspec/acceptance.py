"""What is known of drafters' acceptance: counts by drafter, confidence class, rank and depth, kept across runs."""

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError

ACCEPTANCE_VERSION = 1

_WINDOW = 256.0
"""Trials after which an old one of the same kind counts for 1/e: text changes, and the counts follow it."""
_MAX_RANK = 7
_MAX_DEPTH = 15
"""Ranks and depths beyond these share their counts."""
_PRIOR = 0.4
"""Chance of the likeliest child of a drafter nobody has seen yet: enough to have it tried."""
_RANK_PRIOR = 0.35
"""What is left of that for each further sibling: seen with prompt lookup."""
_PRIOR_WEIGHT = 3.0
"""Trials that an estimate borrows from the broader kind it belongs to."""
_ERRORS_BELOW = 0.3
"""Standard errors by which estimates are lowered: what was seen seldom has to be clearly good to be drafted."""
_REFRESH = 256
"""Records after which all estimates are made anew."""

Kind = tuple[int, int, int]  # grade, rank, depth; grade -1 is all grades together
_ALL = -1


@dataclass(slots=True)
class _Count:
    tried: float = 0.0
    accepted: float = 0.0


class DrafterAcceptance:
    """One drafter's part of the table: P(a node is accepted | its parent is), marginal over its siblings.

    An estimate for a grade, rank and depth leans on all grades of that rank and depth, and these on the depth before.
    """

    def __init__(self) -> None:
        self._counts: dict[Kind, _Count] = {}
        self._chances: dict[Kind, float] = {}
        self._records = 0

    def record(self, grade: int, rank: int, depth: int, accepted: bool) -> None:
        """A node whose parent was accepted was, or was not, what followed."""
        rank, depth = min(rank, _MAX_RANK), min(depth, _MAX_DEPTH)
        for kind in ((grade, rank, depth), (_ALL, rank, depth)):
            count = self._counts.get(kind)
            if count is None:
                count = self._counts[kind] = _Count()
            keep = 1.0 - 1.0 / _WINDOW
            count.tried = count.tried * keep + 1.0
            count.accepted = count.accepted * keep + accepted
            self._chances.pop(kind, None)
        self._records += 1
        if self._records % _REFRESH == 0:
            self._chances.clear()  # estimates lean on counts of other kinds, too

    def chance(self, grade: int, rank: int, depth: int) -> float:
        """A lower confidence bound of P(accepted | parent accepted), from 0 to 1; arguments as `Chances.chance`."""
        kind = (grade, min(rank, _MAX_RANK), min(depth, _MAX_DEPTH))
        chance = self._chances.get(kind)
        if chance is None:
            mean, weight = self._estimate(kind)
            chance = max(mean - _ERRORS_BELOW * math.sqrt(mean * (1.0 - mean) / (weight + 1.0)), 0.0)
            self._chances[kind] = chance
        return chance

    def rows(self) -> Iterator[tuple[Kind, float, float]]:
        """Every (grade, rank, depth) seen, with the decayed numbers of trials and acceptances; grade -1 is all grades together."""
        for kind, count in sorted(self._counts.items()):
            yield kind, count.tried, count.accepted

    def restore(self, kind: Kind, tried: float, accepted: float) -> None:
        """Take in a row that `rows` gave."""
        self._counts[kind] = _Count(tried, accepted)

    def _estimate(self, kind: Kind) -> tuple[float, float]:
        """Mean, and the number of trials behind it."""
        grade, rank, depth = kind
        if grade != _ALL:
            prior = self._estimate((_ALL, rank, depth))[0]
        elif depth > 1:
            prior = self._estimate((_ALL, rank, depth - 1))[0]
        else:
            prior = _PRIOR * _RANK_PRIOR**rank
        count = self._counts.get(kind) or _Count()
        weight = count.tried + _PRIOR_WEIGHT
        return (count.accepted + _PRIOR_WEIGHT * prior) / weight, weight


class AcceptanceTable:
    """The acceptance of several drafters, by name."""

    def __init__(self) -> None:
        self._drafters: dict[str, DrafterAcceptance] = {}

    def of(self, drafter: str) -> DrafterAcceptance:
        """The part of one drafter; empty for one not seen before."""
        part = self._drafters.get(drafter)
        if part is None:
            part = self._drafters[drafter] = DrafterAcceptance()
        return part

    def names(self) -> list[str]:
        """The drafters known."""
        return list(self._drafters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; an interrupted write leaves the old file.

        Raises:
            UsageError: if that can't be done.
        """
        drafters = {name: [[*kind, tried, accepted] for kind, tried, accepted in part.rows()] for name, part in self._drafters.items()}
        content = json.dumps({"version": ACCEPTANCE_VERSION, "drafters": drafters})
        name = os.fspath(path)
        try:
            target = Path(path).resolve()  # a link stays one
            if target.exists() and not target.is_file():
                raise UsageError(f"statistics can't be written to {name!r}: it is no file; give the path of one")
            partial = target.with_name(f"{target.name}.{os.getpid()}.part")
            partial.write_text(content + "\n", encoding="utf-8")
            partial.replace(target)
        except UsageError:
            raise
        except OSError as error:
            raise UsageError(f"statistics can't be written to {name!r}: {error.strerror}; give a path that can be") from None
        except ValueError as error:
            raise UsageError(f"statistics can't be written to {name!r}: {error}; give a path that can be") from None


def load_acceptance(path: str | os.PathLike[str]) -> AcceptanceTable:
    """Read a table that `AcceptanceTable.save` wrote.

    Raises:
        UsageError: if the file can't be read, or is something else.
    """
    name = os.fspath(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"statistics file {name!r} can't be read: {error.strerror}; give a file that flexspec saved") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"statistics file {name!r} is not JSON: {error}; give a file that flexspec saved") from None
    if not isinstance(content, dict) or content.get("version") != ACCEPTANCE_VERSION or not isinstance(content.get("drafters"), dict):
        raise UsageError(f"statistics file {name!r} holds no statistics of version {ACCEPTANCE_VERSION}: give a file that flexspec saved")
    table = AcceptanceTable()
    for drafter, rows in content["drafters"].items():
        part = table.of(drafter)
        if not isinstance(rows, list) or not all(map(_is_row, rows)):
            raise UsageError(f"statistics file {name!r}: the rows of {drafter!r} are damaged; delete the file to begin anew")
        for grade, rank, depth, tried, accepted in rows:
            part.restore((grade, rank, depth), float(tried), float(accepted))
    return table


def _is_row(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 5 or any(isinstance(value, bool) or not isinstance(value, int | float) for value in row):
        return False
    grade, rank, depth, tried, accepted = row
    return all(isinstance(value, int) for value in row[:3]) and grade >= _ALL and rank >= 0 and depth >= 1 and 0 <= accepted <= tried < 1e9
