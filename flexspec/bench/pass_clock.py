"""Timing what another system generates, by its passes of the large model."""

from time import perf_counter

from flexspec.bench.measurement import Measurement


class PassClock:
    """Notes when the tokens of each pass arrive; `start` it when the prompt is handed over."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._times: list[float] = []

    def start(self) -> None:
        """The prompt is handed over now."""
        self._began = perf_counter()

    def note(self, tokens: int, *, same_pass: bool = False) -> None:
        """So many tokens arrived now, of a pass of their own or, with `same_pass`, of the last one noted."""
        now = perf_counter()
        if same_pass:
            self._counts[-1] += tokens
            self._times[-1] = now
        else:
            self._counts.append(tokens)
            self._times.append(now)

    @property
    def tokens(self) -> int:
        """How many arrived so far."""
        return sum(self._counts)

    def measurement(self) -> Measurement:
        """Everything noted; prefill ends with the tokens of the first pass."""
        return Measurement(
            new_tokens=self.tokens,
            decode_tokens=self.tokens - self._counts[0],
            steps=len(self._counts),
            prefill_s=self._times[0] - self._began,
            decode_s=self._times[-1] - self._times[0],
        )
