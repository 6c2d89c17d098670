from types import SimpleNamespace

import pytest

from flexspec.ir.logits import logits_of


@pytest.mark.parametrize("output", ["here", ("here", 3), ["here"], {"logits": "here", "loss": 3}, SimpleNamespace(logits="here", loss=3)])
def test_where_logits_may_be(output: object) -> None:
    assert logits_of(output) == "here"


def test_what_has_none_is_given_back() -> None:
    assert logits_of({"scores": 1}) == {"scores": 1} and logits_of(()) == ()
