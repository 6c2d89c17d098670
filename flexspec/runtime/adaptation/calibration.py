"""How far expected acceptance is from what comes."""

_MEMORY = 64.0
"""Steps over which both are compared."""
_FIRST = 8.0
"""Accepted tokens, and expected ones, that stand at the beginning: until there are more, the two are taken to agree."""
_MOST = 2.0


class Calibration:
    """The factor by which accepted tokens exceed expected ones.

    Estimates of single nodes are lowered while they are young, and the best of many tend to be too high; both together may be
    off either way, depending on the text.
    """

    def __init__(self) -> None:
        self._expected = self._accepted = _FIRST

    @property
    def factor(self) -> float:
        """Between a half and 2."""
        return min(max(self._accepted / self._expected, 1 / _MOST), _MOST)

    def observe(self, expected: float, accepted: int) -> None:
        """A step that verified drafts.

        Args:
            expected: tokens that were to be accepted, as single nodes were estimated.
            accepted: that were.
        """
        keep = 1.0 - 1.0 / _MEMORY
        self._expected = self._expected * keep + expected
        self._accepted = self._accepted * keep + accepted
