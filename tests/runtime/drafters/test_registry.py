import pytest

from flexspec.errors import UsageError
from flexspec.runtime.drafters.registry import DRAFTERS, make_drafter


@pytest.mark.parametrize("name", ["ngram", "suffix", "suffix:history"])
def test_names_give_new_drafters(name: str) -> None:
    assert name in DRAFTERS.names()
    assert make_drafter(name).name == name
    assert make_drafter(name) is not make_drafter(name)


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError, match="drafter='ngrams' is unknown: give one of ngram, suffix, suffix:history"):
        make_drafter("ngrams")


def test_names_are_taken_once() -> None:
    with pytest.raises(UsageError, match="'ngram' is registered already"):
        DRAFTERS.register("ngram", DRAFTERS.get("ngram"))
