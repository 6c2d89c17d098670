"""Measurements that may fail without keeping the others from being made."""

from collections.abc import Callable

from flexspec.codegen.device_check.part import Row

_LONGEST = 300


def attempt(row: Row, measure: Callable[[], Row]) -> Row:
    """`row`, and what `measure` says; or that it is not ok, and what the problem was."""
    try:
        return row | measure()
    except Exception as problem:  # However something fails, from its compilation on: that is what is looked for.
        return row | {"ok": False, "problem": describe(problem)}


def describe(problem: BaseException) -> str:
    """The kind of a problem and the beginning of what it says, on one line."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:_LONGEST]}" if text else type(problem).__name__
