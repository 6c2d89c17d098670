"""Whether a drafter that costs time is asked."""

_MEMORY = 24.0
"""Steps over which its worth is judged."""
_TRIAL_STEPS = 6
"""Steps before it is judged for the first time."""
_MARGIN = 0.01
"""Tokens a step by which it must be better, or worse, than nothing for its state to change: keeps it from flapping."""
_CHEAP = 0.02
"""Tokens' worth of time that a drafter may always take: so drafters without a model are scored at every step."""
_PROBE_SHARE = 0.01
"""Share of the time that trying a drafter that is off may take."""


class DrafterSwitch:
    """Turns a drafter off while it costs more than it brings, and tries it again now and then.

    What it brings is counted in tokens, and so is its time, at the running rate: E - λT.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._net = 0.0
        self._steps = 0.0
        self._seconds = 0.0
        self._since_probe_s = 0.0
        self._was_asked = False
        self._was_asked_before = False

    @property
    def seconds(self) -> float:
        """Of one proposal, while it is asked at every step; 0 before the first."""
        return self._seconds

    def asks(self) -> bool:
        """Whether to ask it in this step."""
        ask = self.is_on or self._since_probe_s * _PROBE_SHARE >= self._seconds
        self._was_asked_before, self._was_asked = self._was_asked, ask
        if ask and not self.is_on:
            self._since_probe_s = 0.0
        return ask

    def drafted(self, seconds: float) -> None:
        """A proposal took `seconds`. The first after a break has to catch up with the text, and is no measure."""
        if not self._seconds:
            self._seconds = seconds
        elif self._was_asked_before:
            self._seconds += 0.1 * (seconds - self._seconds)
        else:
            self._seconds = min(self._seconds, seconds)

    def judge(self, gain: float, rate: float) -> None:
        """After a step in which it was asked.

        Args:
            gain: tokens accepted that only it proposed, less the cost of verifying what only it proposed, in tokens.
            rate: tokens a second.
        """
        net = gain - rate * self._seconds
        self._steps = min(self._steps + 1.0, _MEMORY)
        self._net += (net - self._net) / self._steps
        if self._steps < _TRIAL_STEPS:
            return
        if rate * self._seconds < _CHEAP:
            self.is_on = True
        elif self._net < -_MARGIN:
            self.is_on = False
        elif self._net > _MARGIN:
            self.is_on = True

    def passed(self, seconds: float) -> None:
        """A step took `seconds`."""
        if not self.is_on:
            self._since_probe_s += seconds
