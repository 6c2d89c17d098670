"""Exceptions that flexspec raises for mistakes a user can mend."""


class UsageError(ValueError):
    """A user's mistake: the message names the value, what is allowed, and the fix.

    The command line prints it as one line and exits with status 2; from Python it is a `ValueError`.
    """
