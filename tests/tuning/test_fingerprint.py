"""Fingerprints tell trainings apart."""

import torch

from flexspec.tuning.fingerprint import fingerprint
from tiny_models import tiny
from tuning_cases import text


def test_it_tells_settings_weights_and_texts_apart() -> None:
    model, texts = tiny("llama"), [text(9, 3)]
    own = fingerprint({"a": 1}, model, texts)
    assert own == fingerprint({"a": 1}, tiny("llama"), texts)
    others = [
        fingerprint({"a": 2}, model, texts),
        fingerprint({"a": 1}, tiny("llama", seed=1), texts),
        fingerprint({"a": 1}, model, []),
        fingerprint({"a": 1}, model, [text(9, 3, seed=1)]),
    ]
    assert len({own, *others}) == 5


def test_weights_of_any_shape() -> None:
    module = torch.nn.Module()
    module.scale = torch.nn.Parameter(torch.tensor(2.0))
    first = fingerprint({}, module, [])
    module.scale.data.fill_(3.0)
    assert first != fingerprint({}, module, [])
