import pytest

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.drafters.base import Children
from flexspec.runtime.verifiers.legality import allows_adaptive
from flexspec.runtime.verifiers.registry import VERIFIERS, make_verifier

SAMPLED = SamplingParams(temperature=0.7)


def test_auto_is_greedy_at_temperature_0_and_coupled_otherwise() -> None:
    assert make_verifier("auto", SamplingParams()).name == "greedy"
    assert make_verifier("auto", SAMPLED).name == "coupled"


def test_names_give_their_verifiers_and_at_temperature_0_all_the_greedy_walk() -> None:
    for name in VERIFIERS.names():
        greedy = make_verifier(name, SamplingParams())
        assert (greedy.name, greedy.children) == ("greedy", Children.ANY)
        assert name == "greedy" or make_verifier(name, SAMPLED).name == name
    assert [make_verifier(name, SAMPLED).children for name in ("coupled", "mss")] == [Children.ANY, Children.DRAWN]


def test_greedy_does_not_sample() -> None:
    with pytest.raises(UsageError, match=r"temperature=0\.7.*temperature=0, or one of auto, coupled, mss"):
        make_verifier("greedy", SAMPLED)


@pytest.mark.parametrize("call", [allows_adaptive, lambda name: make_verifier(name, SAMPLED)])
def test_unknown_names_list_the_known_ones(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="verifier='best' is unknown: give one of auto, greedy, coupled, mss"):
        call("best")
    assert allows_adaptive("auto") and not allows_adaptive("mss")


def test_names_are_taken_once() -> None:
    with pytest.raises(UsageError, match="'mss' is registered already"):
        VERIFIERS.register("mss", VERIFIERS.get("mss"))
