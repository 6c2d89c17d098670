"""Stop strings in text that arrives piece by piece."""

from collections.abc import Sequence


class StopMatcher:
    """Finds the first stop string, and holds back text that may turn out to be the beginning of one.

    Args:
        stop_strings: non-empty strings; with none of them everything passes through.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        self._stop_strings = tuple(stop_strings)
        self._held = ""
        self.stopped = False

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Take the next piece and return what can be shown; nothing from a stop string on ever is.

        Args:
            text: the piece.
            may_stop: whether a stop string that it completes counts.
        """
        assert not self.stopped, "text after a stop string"
        held = self._held + text
        found = self._find(held, len(self._held)) if may_stop else None
        if found is not None:
            self.stopped = True
            self._held = ""
            return held[:found]
        shown = len(held) - self._longest_beginning(held)
        self._held = held[shown:]
        return held[:shown]

    def flush(self) -> str:
        """What was held back, when no more text follows."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, old: int) -> int | None:
        """Where the first stop string begins that ends after the first `old` characters: what was held back completed none that counts."""
        starts = [text.find(stop, max(0, old - len(stop) + 1)) for stop in self._stop_strings]
        return min((start for start in starts if start >= 0), default=None)

    def _longest_beginning(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        longest = 0
        for stop in self._stop_strings:
            for length in range(min(len(stop) - 1, len(text)), longest, -1):
                if text.endswith(stop[:length]):
                    longest = length
                    break
        return longest
