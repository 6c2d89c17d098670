"""Whether a drafter that costs time is asked."""

_MEMORY = 24.0
_PROBE_MEMORY = 8.0
"""Steps over which its worth is judged, and tries while it is off."""
_TRIAL_STEPS = 4
"""Steps before it is judged for the first time."""
_MARGIN = 0.01
"""Tokens a step by which it must be better, or worse, than nothing for its state to change: keeps it from flapping."""
_CHEAP = 0.02
"""Tokens' worth of time that a drafter may always take: so drafters without a model are scored at every step."""
_PROBE_SHARE = 0.005
"""Share of the time that trying a drafter that is off may take; what it proposes has to be verified too, which takes about as much."""


class DrafterSwitch:
    """Turns a drafter off while it costs more than it brings, and tries it again now and then.

    What it brings is counted in tokens, and so is its time, at the running rate: E - λT.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._net = 0.0
        self._steps = 0.0
        self._seconds = 0.0
        self._credit_s = 0.0  # while off: seconds that may be spent on trying it

    @property
    def seconds(self) -> float:
        """Of one proposal, while it is asked at every step; 0 while that is unknown."""
        return self._seconds

    def asks(self) -> bool:
        """Whether to ask it in this step."""
        return self.is_on or self._credit_s >= self._seconds

    def drafted(self, seconds: float, *, is_steady: bool) -> None:
        """A proposal took `seconds`.

        Args:
            seconds: of all requests.
            is_steady: whether it was asked for the same requests in the step before. Otherwise it had to read a prompt, or
                text that came while it was off, which is no measure of its cost.
        """
        if is_steady:
            self._seconds += (0.1 if self._seconds else 1.0) * (seconds - self._seconds)
        if not self.is_on:
            self._credit_s -= seconds

    def judge(self, gain: float, rate: float) -> None:
        """After a step in which it was asked.

        Args:
            gain: tokens accepted that only it proposed, less the cost of verifying what only it proposed, in tokens.
            rate: tokens a second.
        """
        net = gain - rate * self._seconds
        self._steps = min(self._steps + 1.0, _MEMORY)
        self._net += (net - self._net) / (self._steps if self.is_on else _PROBE_MEMORY)
        if self._steps < _TRIAL_STEPS:
            return
        if rate * self._seconds < _CHEAP:
            self.is_on = True
        elif self._net < -_MARGIN and self.is_on:
            self.is_on = False
            self._credit_s = 0.0
        elif self._net > _MARGIN:
            self.is_on = True

    def passed(self, seconds: float) -> None:
        """A step took `seconds`."""
        if not self.is_on:
            self._credit_s += _PROBE_SHARE * seconds
