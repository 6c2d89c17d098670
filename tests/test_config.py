"""Numbers of `SamplingParams`, whatever type they come in."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from flexspec import SamplingParams, UsageError

FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


@pytest.mark.parametrize("given", [Fraction(1, 2), np.float32(0.5), np.float64(0.5), 0.5])
@pytest.mark.parametrize("name", FLOATS)
def test_numbers_become_floats(name: str, given: Any) -> None:
    value = getattr(SamplingParams(**{name: given}), name)
    assert type(value) is float and value == 0.5


def test_biases_become_floats() -> None:
    bias = SamplingParams(logit_bias={3: Fraction(1, 2), 4: 1}).logit_bias
    assert bias == {3: 0.5, 4: 1.0} and {type(value) for value in bias.values()} == {float}


@pytest.mark.parametrize("given", [10**400, -(10**400), pytest.param(10**5000, id="10**5000"), Fraction(10**400)])
@pytest.mark.parametrize("name", [*FLOATS, "logit_bias"])
def test_numbers_that_no_float_holds_are_refused(name: str, given: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}=.* is not allowed: give"):
        SamplingParams(**{name: {3: given} if name == "logit_bias" else given})
