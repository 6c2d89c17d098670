"""Drafters that need no model, by name."""

from collections.abc import Callable

from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.suffix import SuffixDrafter
from flexspec.runtime.registry import Registry

_HISTORY = 200_000
"""Tokens of earlier outputs that `suffix:history` remembers, in some 20 MB."""

DRAFTERS: Registry[Callable[[], Drafter]] = Registry("drafter")
DRAFTERS.register("ngram", NgramDrafter)
DRAFTERS.register("suffix", SuffixDrafter)
DRAFTERS.register("suffix:history", lambda: SuffixDrafter(history=_HISTORY))


def make_drafter(name: str) -> Drafter:
    """A new model-free drafter.

    Raises:
        UsageError: if the name is unknown.
    """
    return DRAFTERS.get(name)()
