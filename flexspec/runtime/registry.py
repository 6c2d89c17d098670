"""Things by name."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from flexspec.errors import UsageError

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """Maps names to things of one kind; rejects duplicates and lists what it knows.

    Args:
        kind: what the things are, for messages, for example `verifier`.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._things: dict[str, Thing] = {}

    def register(self, name: str, thing: Thing) -> None:
        """Add `thing`.

        Raises:
            UsageError: if the name is taken.
        """
        if name in self._things:
            raise UsageError(f"{self._kind}={name!r} is registered already: choose a name other than {', '.join(self.names())}")
        self._things[name] = thing

    def names(self) -> list[str]:
        """Known names, in the order of their registration."""
        return list(self._things)

    def get(self, name: str, *, also: Sequence[str] = ()) -> Thing:
        """The thing called `name`.

        Args:
            name: what is looked for.
            also: further values that the message lists as allowed.

        Raises:
            UsageError: if the name is unknown.
        """
        if not isinstance(name, str) or name not in self._things:
            raise UsageError(f"{self._kind}={name!r} is unknown: give one of {', '.join([*also, *self.names()])}")
        return self._things[name]
