"""What ends a job whose ranks need each other."""


class RankFailure(RuntimeError):
    """Another rank can't go on, or doesn't answer."""
