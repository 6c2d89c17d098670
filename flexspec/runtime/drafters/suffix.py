"""Drafts what most often followed the longest repeated end of the text."""

from collections.abc import Sequence
from heapq import heappop, heappush

from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.output_history import HistoryReader, OutputHistory
from flexspec.runtime.drafters.suffix_automaton import ROOT, SuffixAutomaton
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeLimits

_LONGEST = 16
"""Longer matches count as this long."""
_GRADES = tuple(1 + 3 * kind for kind in (0, 0, 1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 6))
"""First grade for each length of match: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more."""
_AMONG_OTHERS, _ONCE, _ALWAYS = range(3)
_CERTAIN_SHARE = 0.8
"""Share of the occurrences from which on a successor seen several times passes for the only one."""
_ESCAPES = (1.4, 1.4, 0.7, 0.6, 0.35, 0.35, 0.15, 0.15, 0.15, 0.12, 0.12, 0.12, 0.12, 0.12, 0.12, 0.12, 0.03)
"""For each length of match, the occurrences' worth of doubt that something follows which never did before (as in PPM): seen
once, the successor is right with probability 1 / (1 + escape). Measured on greedy answers of SmolLM2-135M."""
_MOST_CONTEXTS = 8
"""Suffixes, the longest first, whose successors become siblings; only loops have more."""
_LEAST_CHANCE = 0.02
"""Paths below this are not proposed within limits: no machine verifies a token in so small a part of a pass."""

Context = tuple[SuffixAutomaton, int, int]
"""What a draft continues: an automaton, a state in it, and how many tokens of the text match."""
Candidate = tuple[float, int, int, Context]
"""A child: chance, token, grade, and the context after it."""


class SuffixDrafter:
    """Proposes what followed earlier occurrences of the text's longest repeated suffix, the commonest first, then the latest.

    The suffix automaton of the request's text finds it at no cost, however long it is. Where too little followed it,
    shorter suffixes add siblings. What is drafted lengthens the match; a draft that reaches the end of the text goes on
    at the longest suffix that is continued, which unrolls loops. The grade of a node tells the length of the match and
    whether its token followed always, once, or among others.

    Args:
        history: tokens of earlier outputs that are drafted from as well; 0 for the request's own text alone. Outputs count
            from the request's release on.
    """

    def __init__(self, *, history: int = 0) -> None:
        assert history >= 0, f"history of {history} tokens"
        self.name = "suffix:history" if history else "suffix"
        self._history = OutputHistory(history) if history else None
        self._texts: dict[int, _Text] = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`; children are chosen, not drawn."""
        return [self._propose(request) for request in requests]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        text = self._texts.pop(request_id, None)
        if text is not None and self._history is not None and text.output:
            self._history.add(text.output)

    def _propose(self, request: DraftRequest) -> TokenTree:
        text = self._texts.get(request.request_id)
        if text is None:
            text = self._texts[request.request_id] = _Text(self._history)
        contexts = text.extend(request)
        root, limit = request.tokens[-1], request.sampler.vocab_limit
        if not contexts:
            return TokenTree.root(root)
        spec = request.spec
        if isinstance(spec, TreeLimits):
            return _grow(root, contexts, spec, limit)
        return _fill(root, contexts, spec.widths, limit)


class _Text:
    """A request's text."""

    def __init__(self, history: OutputHistory | None) -> None:
        self.output: list[int] = []
        self._automaton = SuffixAutomaton()
        self._reader = HistoryReader(history) if history is not None else None

    def extend(self, request: DraftRequest) -> list[Context]:
        """Take in what is new, and find what continues the text."""
        automaton, tokens = self._automaton, request.tokens
        old = automaton.size
        automaton.extend(tokens[old:])
        state = automaton.links[automaton.last]
        contexts = [(automaton, state, automaton.lengths[state])] if state > ROOT else []
        if self._reader is not None:
            self.output += tokens[max(old, request.prompt_length) :]
            contexts += self._reader.follow(tokens, old)
        return contexts


def _fill(root: int, contexts: Sequence[Context], widths: Sequence[int], limit: int) -> TokenTree:
    """The tree of these widths, level by level, as far as there are candidates."""
    tokens, parents, grades = [root], [-1], [0]
    level = [(0, contexts)]
    for width in widths:
        below: list[tuple[int, Sequence[Context]]] = []
        for node, known in level:
            for _, token, grade, context in _candidates(known, width, limit):
                below.append((len(tokens), (context,)))
                tokens.append(token)
                parents.append(node)
                grades.append(grade)
        level = below
    return TokenTree(tokens=tokens, parents=parents, grades=grades)


def _grow(root: int, contexts: Sequence[Context], limits: TreeLimits, limit: int) -> TokenTree:
    """The likeliest nodes within the limits, best first."""
    tokens, parents, grades, depths = [root], [-1], [0], [0]
    pushed = 0
    heap: list[tuple[float, int, int, Candidate]] = []
    known, chance, node = contexts, 1.0, 0
    while True:
        if depths[node] < limits.depth:
            for candidate in _worthwhile(known, limits.branch, limit, _LEAST_CHANCE / chance):
                pushed += 1
                heappush(heap, (-chance * candidate[0], pushed, node, candidate))
        if not heap or len(tokens) > limits.budget:
            return TokenTree(tokens=tokens, parents=parents, grades=grades)
        negative, _, parent, (_, token, grade, context) = heappop(heap)
        known, chance, node = (context,), -negative, len(tokens)
        tokens.append(token)
        parents.append(parent)
        grades.append(grade)
        depths.append(depths[parent] + 1)


def _worthwhile(contexts: Sequence[Context], most: int, limit: int, least: float) -> list[Candidate]:
    """Candidates whose chance is `least` or more; siblings are looked for only if what the best leaves could suffice."""
    found = _candidates(contexts, 1, limit)
    if not found or found[0][0] < least:
        return []
    if most == 1 or 1.0 - found[0][0] < least:
        return found
    return [candidate for candidate in _candidates(contexts, most, limit) if candidate[0] >= least]


def _candidates(contexts: Sequence[Context], most: int, limit: int) -> list[Candidate]:
    """Up to `most` children, the best first; of what several contexts propose, the likelier version counts."""
    if len(contexts) == 1:
        if most == 1:
            return _best(*contexts[0], limit)
        return _ranked(*contexts[0], most, limit)
    best: dict[int, Candidate] = {}
    for context in contexts:
        for candidate in _ranked(*context, most, limit):
            token = candidate[1]
            if token not in best or candidate[0] > best[token][0]:
                best[token] = candidate
    return sorted(best.values(), key=lambda candidate: -candidate[0])[:most]


def _best(automaton: SuffixAutomaton, state: int, length: int, limit: int) -> list[Candidate]:
    """As `_ranked` for one child, most often at once."""
    if state == automaton.last:
        state = automaton.links[state]
    token = automaton.best_tokens[state]
    if token >= limit:
        return _ranked(automaton, state, length, 1, limit)
    return [_candidate(automaton, automaton.best_targets[state], token, length, automaton.total(state), 1.0)]


def _ranked(automaton: SuffixAutomaton, state: int, length: int, most: int, limit: int) -> list[Candidate]:
    """Up to `most` children, of what followed the longest suffix first, then of what followed shorter ones."""
    found: dict[int, Candidate] = {}
    mass = 1.0
    if state == automaton.last:  # the draft has reached the end of the text: it goes on in its own copy, which matches as far
        state = automaton.links[state]
    for _ in range(_MOST_CONTEXTS):
        if state == ROOT:
            break
        total = automaton.total(state)
        for token, target in automaton.successors(state, most + 1):  # one may be no token of the vocabulary
            if token < limit and token not in found:
                found[token] = _candidate(automaton, target, token, length, total, mass)
                if len(found) == most:
                    return list(found.values())
        escape = _ESCAPES[min(length, _LONGEST)]
        mass *= escape / (total + escape)
        state = automaton.links[state]
        length = automaton.lengths[state]
    return list(found.values())


def _candidate(automaton: SuffixAutomaton, target: int, token: int, length: int, total: int, mass: float) -> Candidate:
    """`token`, which led to `target` after one in `total` occurrences of a context of `length` tokens that has this share of the chance."""
    kind = length if length < _LONGEST else _LONGEST
    count = automaton.counts[target]
    certainty = _ONCE if total == 1 else _ALWAYS if count > 1 and count >= _CERTAIN_SHARE * total else _AMONG_OTHERS
    return mass * count / (total + _ESCAPES[kind]), token, _GRADES[kind] + certainty, (automaton, target, length + 1)
