"""A text's suffix automaton, which grows token by token and counts what followed what."""

from array import array
from collections.abc import Sequence
from itertools import islice

_COUNTED_CONTEXTS = 8
"""Contexts, the longest first, in which an arriving token is counted: all of them but in loops, whose contexts are as many
as the turns."""
_SCANNED_SUCCESSORS = 64
"""Successors of a state, the best aside, among which the next best are looked for, newest first."""

ROOT = 0


class SuffixAutomaton:
    """Every substring of a text leads from state 0 to one state; substrings that end at the same places share it.

    Built online, in amortised constant time a token (Blumer et al., 1985, "The smallest automaton recognizing the subwords
    of a text"). A token that follows a context leads to the state of both together, so the number of times that state was
    seen is the number of times the token followed. Memory: six small numbers a state, at most two states a token, and a
    map for the states with several successors.

    Attributes:
        last: the state of the whole text.
        size: tokens so far.
        lengths: for each state, tokens of its longest substring.
        links: for each state, the state of the longest suffix that occurs at more places; -1 for the root.
        counts: for each state, how often its substrings occurred. In loops those of short ones are too low.
        best_tokens: for each state, the token that followed most often, of several the latest; -1 if none did.
        best_targets: for each state, where that token leads.
    """

    def __init__(self) -> None:
        self.last = ROOT
        self.size = 0
        self.lengths = array("i", [0])
        self.links = array("i", [-1])
        self.counts = array("i", [0])
        self.best_tokens = array("i", [-1])
        self.best_targets = array("i", [0])
        self._ends = array("i", [0])
        self._others: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        """Number of states."""
        return len(self.lengths)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text."""
        for token in tokens:
            self._append(token)

    def step(self, state: int, token: int) -> int:
        """Where `token` leads from `state`; -1 if it never followed."""
        if self.best_tokens[state] == token:
            return self.best_targets[state]
        others = self._others.get(state)
        return -1 if others is None else others.get(token, -1)

    def follow(self, state: int, length: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Where another text stands when it goes on with `tokens`: the longest suffix of it that occurs here, as state and length.

        Args:
            state: where it stood; it may stem from when this text was shorter.
            length: how many of its tokens that state stood for.
            tokens: what it goes on with.
        """
        links, lengths = self.links, self.lengths
        while state > ROOT and length <= lengths[links[state]]:
            state = links[state]
        for token in tokens:
            target = self.step(state, token)
            while target < 0 and state > ROOT:
                state = links[state]
                length = lengths[state]
                target = self.step(state, token)
            state, length = (target, length + 1) if target >= 0 else (ROOT, 0)
        return state, length

    def total(self, state: int) -> int:
        """How often something followed `state`; where different tokens did, its occurrence at the end of the text may be counted in."""
        best = self.counts[self.best_targets[state]]
        return max(self.counts[state], best) if state in self._others else best

    def successors(self, state: int, most: int) -> list[tuple[int, int]]:
        """Up to `most` (token, target) pairs of tokens that followed `state`, the commonest first, then the latest."""
        if self.best_tokens[state] < 0:
            return []
        found = [(self.best_tokens[state], self.best_targets[state])]
        others = self._others.get(state)
        if others is None or most == 1:
            return found
        if len(others) == 1:
            return found + list(others.items())
        counts, ends = self.counts, self._ends
        scanned = islice(reversed(others.items()), max(_SCANNED_SUCCESSORS, most))
        ranked = sorted(scanned, key=lambda edge: (counts[edge[1]], ends[edge[1]]), reverse=True)
        return found + ranked[: most - 1]

    def _append(self, token: int) -> None:
        links, best_tokens, others = self.links, self.best_tokens, self._others
        self.size += 1
        state, self.last = self.last, self._add_state(self.size)
        while state >= 0:
            if best_tokens[state] == token:
                target = self.best_targets[state]
                break
            edges = others.get(state)
            if edges is not None and token in edges:
                target = edges[token]
                break
            self._add_edge(state, token)
            state = links[state]
        else:
            links[self.last] = ROOT
            return
        if self.lengths[target] != self.lengths[state] + 1:
            target = self._split(state, token, target)
        links[self.last] = target
        self._count(state, token)

    def _add_state(self, length: int) -> int:
        self.lengths.append(length)
        self.links.append(ROOT)
        self.counts.append(1)
        self.best_tokens.append(-1)
        self.best_targets.append(0)
        self._ends.append(self.size)
        return len(self.lengths) - 1

    def _add_edge(self, state: int, token: int) -> None:
        """`token` followed `state` for the first time and led to the end of the text."""
        best = self.best_tokens[state]
        if best < 0:
            self.best_tokens[state] = token
            self.best_targets[state] = self.last
        elif self.counts[self.best_targets[state]] == 1:
            self._others.setdefault(state, {})[best] = self.best_targets[state]
            self.best_tokens[state] = token
            self.best_targets[state] = self.last
        else:
            self._others.setdefault(state, {})[token] = self.last

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the substrings of `target` that end in those of `state` and `token` a state of their own: only they recur."""
        links, best_tokens, best_targets = self.links, self.best_tokens, self.best_targets
        clone = self._add_state(self.lengths[state] + 1)
        links[clone] = links[target]
        links[target] = clone
        self.counts[clone] = self.counts[target]
        best_tokens[clone] = best_tokens[target]
        best_targets[clone] = best_targets[target]
        if target in self._others:
            self._others[clone] = self._others[target].copy()
        while state >= 0:
            if best_tokens[state] == token:
                if best_targets[state] != target:
                    break
                best_targets[state] = clone
            else:
                edges = self._others[state]
                if edges[token] != target:
                    break
                edges[token] = clone
            state = links[state]
        return clone

    def _count(self, state: int, token: int) -> None:
        """`token` followed `state`, and its suffixes, once more."""
        links, counts, best_tokens, best_targets = self.links, self.counts, self.best_tokens, self.best_targets
        counted = -1
        for _ in range(_COUNTED_CONTEXTS):
            best = best_tokens[state]
            target = best_targets[state] if best == token else self._others[state][token]
            if target != counted:
                counted = target
                counts[target] += 1
                self._ends[target] = self.size
            if best != token and counts[target] >= counts[best_targets[state]]:
                edges = self._others[state]
                del edges[token]
                edges[best] = best_targets[state]
                best_tokens[state] = token
                best_targets[state] = target
            state = links[state]
            if state < 0:
                break
