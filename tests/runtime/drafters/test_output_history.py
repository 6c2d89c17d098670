from hypothesis import given
from hypothesis import strategies as st

from flexspec.runtime.drafters.output_history import SEPARATOR, HistoryReader, OutputHistory

outputs = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=12)


def longest_known(output: list[int], text: list[int]) -> int:
    ends = [output[:end] for end in range(1, len(output) + 1)]
    return max((n for n in range(1, len(text) + 1) for end in ends if end[-n:] == text[-n:]), default=0)


def lengths(reader: HistoryReader, text: list[int], old: int) -> list[int]:
    return [length for _, _, length in reader.follow(text, old)]


@given(outputs, st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_a_growing_text_is_followed_in_all_outputs(known: list[list[int]], text: list[int]) -> None:
    history = OutputHistory(1000)
    for output in known:
        history.add(output)
    reader = HistoryReader(history)
    for old in range(len(text)):
        expected = max((longest_known(output, text[: old + 1]) for output in known), default=0)
        assert max(lengths(reader, text[: old + 1], old), default=0) == expected


@given(outputs)
def test_between_half_and_all_of_the_capacity_is_remembered_and_the_oldest_forgotten(known: list[list[int]]) -> None:
    history = OutputHistory(40)
    for output in known:
        history.add(output)
        assert sum(automaton.size for automaton in history.automata) <= 40
    for kept in range(1, len(known) + 1):  # with a separator each
        if sum(len(output) + 1 for output in known[-kept:]) <= 20:
            assert max(lengths(HistoryReader(history), known[-kept], 0)) == len(known[-kept])


def test_a_reader_goes_on_when_outputs_come_and_go() -> None:
    history = OutputHistory(12)
    reader = HistoryReader(history)
    history.add([1, 2, 3])
    assert lengths(reader, [9, 1], 0) == [1]
    history.add([4, 5, 6])
    assert lengths(reader, [9, 1, 2], 2) == [2]
    assert len(history.automata) == 2
    history.add([7, 8, 0])
    assert lengths(reader, [9, 1, 2, 3], 3) == []
    assert lengths(reader, [9, 1, 2, 3, 7, 8], 4) == [2]


def test_a_text_first_seen_late_is_compared_at_its_end() -> None:
    history = OutputHistory(1000)
    history.add([*range(50)])
    assert lengths(HistoryReader(history), [*range(50)], 0) == [32]


def test_outputs_do_not_run_into_each_other() -> None:
    history = OutputHistory(1000)
    history.add([1, 2])
    history.add([3, 4])
    (automaton, state, length), *_ = HistoryReader(history).follow([1, 2], 0)
    assert length == 2 and [token for token, _ in automaton.successors(state, 3)] == [SEPARATOR]
