import pytest

from flexspec.errors import UsageError
from flexspec.runtime.drafters.registry import DRAFTERS, make_drafter


def test_names_give_new_drafters() -> None:
    assert make_drafter("ngram").name == "ngram"
    assert make_drafter("ngram") is not make_drafter("ngram")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UsageError, match="drafter='ngrams' is unknown: give one of ngram"):
        make_drafter("ngrams")


def test_names_are_taken_once() -> None:
    with pytest.raises(UsageError, match="'ngram' is registered already"):
        DRAFTERS.register("ngram", DRAFTERS.get("ngram"))
