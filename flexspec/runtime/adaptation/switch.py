"""Whether a drafter that costs time is asked."""

import math
from bisect import bisect_right

_MEMORY = 128.0
_PROBE_MEMORY = 8.0
"""Steps over which its worth is judged, and tries while it is off."""
_TRIAL_STEPS = 12
"""Steps before it is judged for the first time."""
_MARGIN = 0.01
"""Tokens a step by which it must be better, or worse, than nothing for its state to change: keeps it from flapping."""
_CHEAP = 0.02
"""Tokens' worth of time that a drafter may always take: so drafters without a model are scored at every step."""
_PROBE_SHARE = 0.005
"""Share of the time that trying a drafter that is off may take; what it proposes has to be verified too, which takes about as much."""
_TRY_PART = 0.1
"""Part of the time that requests have been decoding that a try may take: one that has to read a long text waits for a long answer."""
_KINDS = (0.15, 0.5, 1.0, 2.0)
"""Tokens that cheaper drafters promise at which another kind of steps begins: the less they promise, the more is left to bring."""


class _Worth:
    """What a drafter brings in steps of one kind.

    Attributes:
        is_on: whether it is asked in them.
    """

    def __init__(self) -> None:
        self.is_on = True
        self._net = 0.0
        self._square = 0.0  # of what a step brings, on average
        self._steps = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there were such steps."""
        return self._steps > 0

    def judge(self, gain: float, cost: float) -> None:
        """After a step in which it was asked there; both in tokens."""
        net = gain - cost
        self._steps = min(self._steps + 1.0, _MEMORY)
        share = 1.0 / (self._steps if self.is_on else _PROBE_MEMORY)
        self._net += share * (net - self._net)
        self._square += share * (net * net - self._square)
        # What a step brings varies by a token and more, so that few steps say little: the benefit of the doubt is two standard errors
        # at first, when the drafter's acceptance is unknown too, and one later.
        error = math.sqrt(max(self._square - self._net**2, 0.0) / self._steps) * (1.0 + _TRIAL_STEPS / self._steps)
        if self._steps >= _TRIAL_STEPS and self._net + error < -_MARGIN:
            self.is_on = False
        elif self._net > _MARGIN:
            self.is_on = True


class DrafterSwitch:
    """Turns a drafter off where it costs more than it brings, and tries it again now and then.

    What it brings is counted in tokens, and so is its time, at the running rate: E - λT. Where cheaper drafters promise little
    it may be worth its time, and where they promise much not.
    """

    def __init__(self) -> None:
        self._worth = [_Worth() for _ in range(len(_KINDS) + 1)]
        self._seconds = 0.0
        self._token_s = 0.0  # of reading a text, by its tokens
        self._try_s = 0.0  # what a try was expected to take when it was last thought of
        self._credit_s = 0.0  # seconds that may be spent on trying it where it is off

    @property
    def seconds(self) -> float:
        """Of one proposal, while it is asked at every step; 0 while that is unknown."""
        return self._seconds

    @property
    def share_on(self) -> float:
        """Share of the kinds of steps that there were at which it is always asked; 1 before the first."""
        known = [worth.is_on for worth in self._worth if worth.is_known]
        return sum(known) / len(known) if known else 1.0

    def is_on(self, promised: float = 0.0) -> bool:
        """Whether it is asked at every step of a kind.

        Args:
            promised: accepted tokens a request that cheaper drafters' proposals let expect in those steps.
        """
        return self._at(promised).is_on

    def asks(self, promised: float = 0.0, *, text_tokens: int = 0, decoded_s: float = math.inf) -> bool:
        """Whether to ask it in this step.

        Args:
            promised: as `is_on` takes it.
            text_tokens: of all requests: what it has to read, at most, if it was off.
            decoded_s: seconds for which the requests have been decoding, on average.
        """
        if self.is_on(promised):
            return True
        self._try_s = self._seconds + self._token_s * text_tokens
        return min(self._credit_s, _TRY_PART * decoded_s) >= self._try_s

    def drafted(self, seconds: float, *, is_steady: bool, promised: float = 0.0, text_tokens: int = 1) -> None:
        """A proposal took `seconds`.

        Args:
            seconds: of all requests.
            is_steady: whether it was asked for the same requests in the step before. Otherwise it had to read a prompt, or
                text that came while it was off, which is no measure of its cost.
            promised: as `is_on` takes it.
            text_tokens: as `asks` takes it.
        """
        if is_steady:
            self._seconds += (0.1 if self._seconds else 1.0) * (seconds - self._seconds)
        else:
            self._token_s += (0.3 if self._token_s else 1.0) * (seconds / text_tokens - self._token_s)
        if not self.is_on(promised):
            self._credit_s -= seconds

    def judge(self, gain: float, rate: float, promised: float = 0.0) -> None:
        """After a step in which it was asked.

        Args:
            gain: tokens accepted that only it proposed, less the cost of verifying what only it proposed, in tokens.
            rate: tokens a second.
            promised: as `is_on` takes it.
        """
        worth, cost = self._at(promised), rate * self._seconds
        worth.judge(gain, cost)
        if cost < _CHEAP:
            worth.is_on = True

    def passed(self, seconds: float) -> None:
        """A step took `seconds`."""
        if self.share_on < 1.0:
            self._credit_s = min(self._credit_s + _PROBE_SHARE * seconds, self._try_s)

    def _at(self, promised: float) -> _Worth:
        return self._worth[bisect_right(_KINDS, promised)]
