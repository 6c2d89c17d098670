"""Tables of collectives."""

from flexspec.calibration.collectives import undisturbed


def test_no_size_takes_longer_than_a_larger_one() -> None:
    assert undisturbed([3.0, 1.0, 9.0, 2.0, 5.0]) == [1.0, 1.0, 2.0, 2.0, 5.0]
    assert undisturbed([1.0, 2.0, 4.0]) == [1.0, 2.0, 4.0]
