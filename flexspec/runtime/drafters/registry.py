"""Drafters that need no model, by name."""

from collections.abc import Callable

from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.registry import Registry

DRAFTERS: Registry[Callable[[], Drafter]] = Registry("drafter")
DRAFTERS.register("ngram", NgramDrafter)


def make_drafter(name: str) -> Drafter:
    """A new model-free drafter.

    Raises:
        UsageError: if the name is unknown.
    """
    return DRAFTERS.get(name)()
