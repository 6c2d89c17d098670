import pytest

from flexspec.runtime.stop import StopMatcher


def shown(stops, pieces):
    matcher = StopMatcher(stops)
    parts = []
    for piece in pieces:
        parts.append(matcher.push(piece))
        if matcher.stopped:
            break
    return parts + ([] if matcher.stopped else [matcher.flush()]), matcher.stopped


@pytest.mark.parametrize(
    ("stops", "pieces", "expected", "stopped"),
    [
        (["END"], ["abcE", "N", "Dxyz"], ["abc", "", ""], True),
        (["END"], ["abcE", "Nx", "y"], ["abc", "ENx", "y", ""], False),
        (["END"], ["EEN", "D"], ["E", ""], True),
        (["END"], ["abE"], ["ab", "E"], False),
        (["aab"], ["aaa", "b"], ["a", ""], True),
        (["xyz", "y"], ["axy"], ["ax"], True),
        (["abc", "bcd"], ["ab", "xbc", "d"], ["", "abx", ""], True),
        ([], ["abc"], ["abc", ""], False),
    ],
)
def test_nothing_of_a_stop_string_is_shown(stops, pieces, expected, stopped):
    assert shown(stops, pieces) == (expected, stopped)


def test_what_is_shown_is_the_text_before_the_first_stop_string_however_it_is_cut():
    text, stops = "aabaabababbaab", ["abab", "bba"]
    for first in range(len(text)):
        for second in range(first, len(text)):
            parts, stopped = shown(stops, [text[:first], text[first:second], text[second:]])
            assert stopped and "".join(parts) == "aaba"


@pytest.mark.parametrize(
    ("stops", "early", "late", "expected", "stopped"),
    [
        (["ab"], ["xab"], ["cab"], "xabc", True),
        (["ab"], ["xa"], ["b"], "x", True),
        (["aa"], ["aa"], ["a"], "a", True),
        (["abc", "b"], ["ab"], ["x"], "abx", False),
        (["abc", "b"], ["ab"], ["c"], "", True),
        (["ab"], ["ab", "ab"], [], "abab", False),
    ],
)
def test_a_stop_string_counts_only_where_it_is_completed_by_a_piece_that_may_stop(stops, early, late, expected, stopped):
    matcher = StopMatcher(stops)
    parts = [matcher.push(piece, may_stop=False) for piece in early] + [matcher.push(piece) for piece in late]
    assert matcher.stopped == stopped and "".join([*parts, matcher.flush()]) == expected
