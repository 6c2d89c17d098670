"""Settings that are not allowed."""

import math
from typing import Any

import pytest

from flexspec.errors import UsageError
from flexspec.tuning.config import DraftModelSettings, TrainingSettings, TuneConfig


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (TrainingSettings, {"passes": 0}, "passes=0 is not allowed: give a whole number of at least 1"),
        (TrainingSettings, {"batch_tokens": 0}, "batch-tokens=0"),
        (TrainingSettings, {"minutes": 0.0}, "minutes=0.0 is not allowed: give a number above 0"),
        (TrainingSettings, {"minutes": math.nan}, "minutes=nan"),
        (TrainingSettings, {"minutes": math.inf}, "minutes=inf"),
        (TrainingSettings, {"learning_rate": 0.0}, "learning_rate=0.0"),
        (TrainingSettings, {"missed_weight": 1.5}, r"missed_weight=1.5 is not allowed: give a number from 0 to 1"),
        (TrainingSettings, {"depth_decay": -0.1}, "depth_decay=-0.1"),
        (TrainingSettings, {"seed": -1}, "seed=-1 is not allowed"),
        (DraftModelSettings, {"kind": "tree"}, "kind='tree' is not allowed: give one of head, ssm"),
        (DraftModelSettings, {"kind": "head", "layers": 2}, "layers=2 is not allowed for a head, which has one layer"),
        (DraftModelSettings, {"kind": "ssm", "layers": 0}, "layers=0"),
        (DraftModelSettings, {"vocab_trim": 1}, "vocab-trim=1 is not allowed"),
        (DraftModelSettings, {"depths": 0}, "depths=0"),
        (TuneConfig, {"model": "m", "pool": 0}, "pool=0 is not allowed"),
        (TuneConfig, {"model": "m", "num_tokens": 0}, "tokens=0 is not allowed"),
        (TuneConfig, {"model": "m", "answer_tokens": 0}, "answer-tokens=0"),
        (
            TuneConfig,
            {"model": "m", "num_prompts": 79},
            "self-made=79 is not allowed: give at least 80 texts, of which one in 40 is held out",
        ),
    ],
)
def test_it_says_what_is_allowed(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make(**options)


def test_layers_by_kind() -> None:
    assert [DraftModelSettings(kind=kind).num_layers for kind in ("head", "ssm")] == [1, 2]
    assert DraftModelSettings(kind="head", layers=1).num_layers == 1
