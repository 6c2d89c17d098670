"""Running passes: an ordered list, each pass stating how many matches it had to find."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, PassNote

Pass = Callable[[ModelGraph], int | tuple[int, int]]


class Recognised(NamedTuple):
    """Matches and expected ones of a pass that makes a graph faster and nothing else: what it misses stays as it is, and is noted."""

    matches: int
    expected: int


def run_passes(model: ModelGraph, passes: Sequence[Pass], *, after_each: Callable[[ModelGraph], None] | None = None) -> None:
    """Run `passes` in order and note what each found.

    Args:
        model: rewritten in place.
        passes: each returns its matches, or its matches and how many it had to find; `Recognised`, if it may find fewer.
        after_each: called after every pass; tests run the graph here.

    Raises:
        UsageError: if a pass finds fewer matches than it had to. What other passes miss is in the notes, which `inspect` and `explain`
            show: a silent miss would be a silent slowdown.
    """
    for one in passes:
        found = one(model)
        matches, expected = found if isinstance(found, tuple) else (found, 0)
        name = getattr(one, "__name__", type(one).__name__)
        model.notes.append(PassNote(name=name, matches=matches, expected=expected))
        if matches < expected and not isinstance(found, Recognised):
            raise UsageError(
                f"model {model.facts.name}: pass {name} matched {matches} of {expected} places; this form of the model is not supported"
            )
        if after_each is not None:
            after_each(model)
