"""Earlier outputs, for drafts that repeat them."""

from collections.abc import Sequence

from flexspec.runtime.drafters.suffix_automaton import ROOT, SuffixAutomaton

SEPARATOR = 2**31 - 1
"""Stands between outputs; beyond every vocabulary, so that nothing drafted crosses it."""
_FIRST_LOOK = 32
"""Tokens at the end of a text that are compared when it is first seen."""


class OutputHistory:
    """The newest outputs, in two automata: when the newer one is full, the older one is forgotten and a new one begun.

    So between half of `capacity` and all of it is remembered, and nothing is ever built anew.

    Args:
        capacity: most tokens that are kept; only a single output of more than half of that exceeds it.
    """

    def __init__(self, capacity: int) -> None:
        self._half = capacity // 2
        self.automata = [SuffixAutomaton()]

    def add(self, output: Sequence[int]) -> None:
        """Remember `output`."""
        newest = self.automata[-1]
        if newest.size and newest.size + len(output) >= self._half:
            newest = SuffixAutomaton()
            self.automata = [self.automata[-1], newest]
        newest.extend(output)
        newest.extend((SEPARATOR,))


class HistoryReader:
    """Keeps the places in the history where one growing text stands.

    Args:
        history: is read; it may grow meanwhile.
    """

    def __init__(self, history: OutputHistory) -> None:
        self._history = history
        self._places: dict[SuffixAutomaton, tuple[int, int]] = {}

    def follow(self, text: Sequence[int], old: int) -> list[tuple[SuffixAutomaton, int, int]]:
        """For each automaton that knows the end of `text`: itself, the state of the longest suffix it knows, and that suffix's length.

        Args:
            text: the whole text, which continues what was given before.
            old: how much of it was given before.
        """
        places = {}
        for automaton in self._history.automata:
            place = self._places.get(automaton)
            if place is None:
                places[automaton] = automaton.follow(ROOT, 0, text[-_FIRST_LOOK:])
            else:
                places[automaton] = automaton.follow(*place, text[old:])
        self._places = places
        return [(automaton, state, length) for automaton, (state, length) in places.items() if state > ROOT]
