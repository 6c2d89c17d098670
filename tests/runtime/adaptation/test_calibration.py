import pytest

from flexspec.runtime.adaptation.calibration import Calibration


def test_it_begins_with_trust():
    assert Calibration().factor == 1.0


@pytest.mark.parametrize(("accepted", "factor"), [(0, 0.5), (1, 0.8), (3, 2.0)])
def test_it_follows_what_comes(accepted, factor):
    calibration = Calibration()
    for _ in range(600):
        calibration.observe(1.25, accepted)
    assert calibration.factor == pytest.approx(factor, abs=0.01)


def test_a_few_steps_change_little():
    calibration = Calibration()
    calibration.observe(1.0, 0)
    assert 0.85 < calibration.factor < 1.0
