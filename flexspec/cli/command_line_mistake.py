"""What is said of a command line that can't be read: the value, what is allowed, and where it is written."""

from collections.abc import Iterable, Sequence
from typing import Any


def command_line_mistake(error: Any, arguments: Sequence[str], commands: Iterable[str]) -> str:
    """The message for what typer found wrong in `arguments`; `error` is click's exception, in whichever package typer keeps it."""
    message = error.format_message().rstrip(".")
    if message.startswith("No such command"):
        return f"{message}: give one of {', '.join(commands)}"
    command = arguments[0] if arguments and arguments[0] in commands else ""
    options: Sequence[str] = getattr(getattr(error, "param", None), "opts", ())
    allowed, number = ("a whole number", int) if "integer" in message else ("a number", float)
    for option, value in _given(arguments, options):
        if not _is(number, value):
            return f"{option} {value} is not allowed: give {allowed}"
    return f"{message}: see {' '.join(filter(None, ('flexspec', command, '--help')))}"


def _given(arguments: Sequence[str], options: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Each of `options` that stands in `arguments`, with its value."""
    for argument, follower in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name in options:
            yield name, value if equals else follower


def _is(number: type[int] | type[float], value: str) -> bool:
    try:
        number(value)
    except ValueError:
        return False
    return True
