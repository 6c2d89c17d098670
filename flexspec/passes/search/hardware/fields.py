"""Reading a hardware file field by field, with errors that name the field, its value and what is valid."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from flexspec.errors import UsageError


@dataclass(frozen=True)
class Fields:
    """An object of a hardware file.

    Attributes:
        source: what the messages call the file.
        place: of the object in it, such as `hosts[0].`.
        content: its fields.
    """

    source: str
    place: str
    content: Mapping[str, Any]

    def check_known(self, *names: str) -> None:
        """Refuse fields with other names."""
        for name in self.content:
            if name not in names:
                raise UsageError(f"{self._named(name)} is unknown: the fields there are {', '.join(names)}")

    def has(self, name: str) -> bool:
        """Whether a field is there."""
        return self.content.get(name) is not None

    def number(self, name: str, *, zero: bool = False, default: float | None = None) -> float:
        """A finite number above 0, or of at least 0."""
        if default is not None and not self.has(name):
            return default
        return _number(self._named(name), self._get(name, "a number"), zero=zero)

    def count(self, name: str, *, default: int | None = None, zero: bool = False) -> int:
        """A whole number of at least 1, or of at least 0."""
        if default is not None and not self.has(name):
            return default
        least = 0 if zero else 1
        value = self._get(name, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refused(name, f"a whole number of at least {least}")
        return value

    def text(self, name: str) -> str:
        """A text with something in it."""
        value = self._get(name, "a text")
        if not isinstance(value, str) or not value.strip():
            raise self.refused(name, "a text")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> Any:
        """One of some texts."""
        value = self._get(name, f"one of {', '.join(choices)}")
        if value not in choices:
            raise self.refused(name, f"one of {', '.join(choices)}")
        return value

    def numbers(self, name: str, *, length: int | None = None, zero: bool = False) -> tuple[float, ...]:
        """A list of finite numbers above 0, or of at least 0."""
        values = self._list(name, "numbers")
        if length is not None and len(values) != length:
            raise UsageError(f"{self._named(name)} has {len(values)} numbers: give {length}, one for each place of the table")
        return tuple(_number(f"{self._named(name)}[{i}]", value, zero=zero) for i, value in enumerate(values))

    def ascending(self, name: str) -> tuple[int, ...]:
        """A list of ascending whole numbers of at least 1."""
        values = self._list(name, "ascending whole numbers")
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in values) or values != sorted(set(values)):
            raise self.refused(name, "ascending whole numbers of at least 1")
        return tuple(values)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts."""
        values = self._list(name, "texts")
        if not all(isinstance(one, str) for one in values):
            raise self.refused(name, "a list of texts")
        return tuple(values)

    def inner(self, name: str) -> "Fields":
        """An object inside this one."""
        value = self._get(name, "an object")
        if not isinstance(value, Mapping):
            raise self.refused(name, "an object")
        return Fields(self.source, f"{self.place}{name}.", value)

    def list_of(self, name: str, *, default: bool = False) -> list["Fields"]:
        """A list of objects inside this one; one at least unless there is a default, which is none."""
        if default and not self.has(name):
            return []
        values = self._list(name, "objects", empty=default)
        if not all(isinstance(one, Mapping) for one in values):
            raise self.refused(name, "a list of objects")
        return [Fields(self.source, f"{self.place}{name}[{i}].", one) for i, one in enumerate(values)]

    def refused(self, name: str, allowed: str) -> UsageError:
        """The error that a field's value makes."""
        return UsageError(f"{self._named(name)}={self.content[name]!r} is not allowed: give {allowed}")

    def _get(self, name: str, what: str) -> Any:
        if name not in self.content:
            raise UsageError(f"{self._named(name)} is missing: give {what}")
        return self.content[name]

    def _list(self, name: str, what: str, *, empty: bool = False) -> list[Any]:
        value = self._get(name, f"a list of {what}")
        if not isinstance(value, list) or not (value or empty):
            raise self.refused(name, f"a list of {what}")
        return value

    def _named(self, name: str) -> str:
        return f"{self.source}: {self.place}{name}"


def _number(named: str, value: Any, *, zero: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0 or (value == 0 and not zero):
        raise UsageError(f"{named}={value!r} is not allowed: give a number {'of at least' if zero else 'above'} 0")
    return float(value)
