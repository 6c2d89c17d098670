import tracemalloc
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexspec.runtime.drafters import suffix_automaton
from flexspec.runtime.drafters.suffix_automaton import ROOT, SuffixAutomaton

texts = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size - 1), min_size=1, max_size=40))


def automaton_of(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    automaton.extend(text)
    return automaton


def state_of(automaton: SuffixAutomaton, substring: list[int]) -> int:
    state = ROOT
    for token in substring:
        state = automaton.step(state, token)
        if state < 0:
            break
    return state


def places_after(text: list[int], substring: list[int]) -> list[int]:
    return [end for end in range(len(substring), len(text) + 1) if text[end - len(substring) : end] == substring]


def known_suffix(text: list[int], other: list[int]) -> list[int]:
    """The longest suffix of `other` that occurs in `text`."""
    return next(other[start:] for start in range(len(other) + 1) if places_after(text, other[start:]))


def longest_repeated_suffix(text: list[int]) -> list[int]:
    return next(text[start:] for start in range(1, len(text) + 1) if len(places_after(text, text[start:])) > 1 or start == len(text))


def ranked_successors(text: list[int], substring: list[int]) -> list[tuple[int, int]]:
    """(token, count), the commonest first, then the latest."""
    seen: dict[int, tuple[int, int]] = {}
    for place in places_after(text, substring):
        if place < len(text):
            seen[text[place]] = seen.get(text[place], (0, 0))[0] + 1, place
    return [(token, seen[token][0]) for token in sorted(seen, key=lambda token: seen[token], reverse=True)]


@given(texts)
def test_the_link_of_the_last_state_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    automaton = automaton_of(text)
    suffix = longest_repeated_suffix(text)
    state = automaton.links[automaton.last]
    assert automaton.lengths[state] == len(suffix)
    assert state == state_of(automaton, suffix)


@given(texts)
def test_its_successors_come_by_count_and_then_by_recency(text: list[int]) -> None:
    automaton = automaton_of(text)
    state, suffix = automaton.links[automaton.last], longest_repeated_suffix(text)
    if not suffix:
        return
    expected = ranked_successors(text, suffix)
    for most in (1, 2, 9):
        found = automaton.successors(state, most)
        assert [(token, automaton.counts[target]) for token, target in found] == expected[:most]
        assert all(automaton.step(state, token) == target == state_of(automaton, [*suffix, token]) for token, target in found)
    assert automaton.best_tokens[state] == expected[0][0] and automaton.best_targets[state] == found[0][1]


@given(texts, st.data())
def test_exactly_the_substrings_have_states_that_know_what_followed(text: list[int], data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix_automaton, "_COUNTED_CONTEXTS", len(text))
        exact = automaton_of(text)
    automaton = automaton_of(text)
    substring = data.draw(st.lists(st.integers(0, max(text) + 1), min_size=1, max_size=5))
    state, occurrences = state_of(automaton, substring), len(places_after(text, substring))
    assert state == state_of(exact, substring) and (state >= 0) == (occurrences > 0)
    if state >= 0:
        successors = ranked_successors(text, substring)
        assert automaton.lengths[automaton.links[state]] < len(substring) <= automaton.lengths[state]
        assert exact.counts[state] == occurrences >= automaton.counts[state]
        assert [(token, exact.counts[target]) for token, target in exact.successors(state, 9)] == successors
        assert {token for token, _ in automaton.successors(state, 9)} == {token for token, _ in successors}
        if successors:
            followed = sum(count for _, count in successors)
            assert exact.total(state) in ((followed,) if len(successors) == 1 else (followed, followed + 1))


def test_a_context_among_many_successors_keeps_the_best_in_view() -> None:
    text = [5, 1, 5, 1]
    for token in range(100, 400):
        text += [5, token]
    automaton = automaton_of(text)
    state = state_of(automaton, [5])
    assert [token for token, _ in automaton.successors(state, 3)] == [1, 399, 398]
    automaton.extend([5, 350])
    assert [token for token, _ in automaton.successors(state, 3)] == [350, 1, 399]


@given(texts, texts, texts, texts)
def test_another_text_is_followed_while_both_grow(text: list[int], growth: list[int], other: list[int], more: list[int]) -> None:
    automaton = automaton_of(text)
    state, length = automaton.follow(ROOT, 0, other)
    assert length == len(known_suffix(text, other)) and state == state_of(automaton, known_suffix(text, other))
    seen = known_suffix(text, other)  # what was unknown when it went by stays so
    automaton.extend(growth)
    state, length = automaton.follow(state, length, more)
    expected = known_suffix(text + growth, seen + more)
    assert length == len(expected) and state == state_of(automaton, expected)


class CountingArray(array):
    """Counts how often it is read."""

    reads = 0

    def __getitem__(self, place):
        CountingArray.reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize(
    "text",
    [[1] * 4096, [1] * 2048 + [2] * 2048, [place % 50 for place in range(4096)], [bin(place).count("1") % 2 for place in range(4096)]],
    ids=["one token", "two runs", "period 50", "Thue-Morse"],
)
def test_work_and_memory_grow_with_the_text_and_no_faster(text: list[int]) -> None:
    tracemalloc.start()
    automaton = automaton_of(text)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memory < 400 * len(text)
    assert len(automaton) <= 2 * len(text)
    work = {}
    for size in (1024, 4096):
        automaton = SuffixAutomaton()
        automaton.links = CountingArray("i", automaton.links)
        CountingArray.reads = 0
        automaton.extend(text[:size])
        work[size] = CountingArray.reads
    assert work[4096] <= 16 * 4096 and work[4096] <= 6 * work[1024]
