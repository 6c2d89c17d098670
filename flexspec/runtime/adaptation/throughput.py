"""How many tokens a second are being emitted: the price of time."""

_MEMORY = 48.0
"""Steps over which the rate is taken."""


class Throughput:
    """Tokens a second over the last steps.

    Args:
        tokens_per_s: the rate to begin with.
        step_s: seconds of a step to begin with.
    """

    def __init__(self, *, tokens_per_s: float, step_s: float) -> None:
        self._tokens = tokens_per_s * step_s * _MEMORY
        self._seconds = step_s * _MEMORY

    @property
    def tokens_per_s(self) -> float:
        """The rate."""
        return self._tokens / self._seconds

    def observe(self, tokens: int, seconds: float) -> None:
        """A step emitted `tokens` in `seconds`."""
        keep = 1.0 - 1.0 / _MEMORY
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds
