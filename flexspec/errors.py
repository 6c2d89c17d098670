"""Exceptions that flexspec raises for mistakes a user can mend."""

FORWARD_ERRORS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError)
"""What a user's own `forward` may raise when it is run or traced."""
_MOST_SHOWN = 200


class UsageError(ValueError):
    """A user's mistake: the message names the value, what is allowed, and the fix.

    The command line prints it as one line and exits with status 2; from Python it is a `ValueError`.
    """


def shown(value: object) -> str:
    """A user's value in a message: as Python writes it, or its type where that takes several lines or very many letters."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN and "\n" not in text else f"<{type(value).__name__}>"
