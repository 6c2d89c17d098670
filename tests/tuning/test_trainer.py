"""Training: it learns, weighs what it should, ends in time, and goes on after any interruption as if there had been none."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from flexspec.errors import UsageError
from flexspec.tuning.batches import make_batch
from flexspec.tuning.config import TrainingSettings
from flexspec.tuning.corpus import Bool
from flexspec.tuning.distillation import distillation_loss
from flexspec.tuning.trainer import Trained, Trainer, TrainingData
from tuning_cases import loaded, member, random_states, same, text, weights_of

TEXTS = [text(5 + 3 * number % 17, 3, seed=number) for number in range(30)]
TEXTS[4] = text(2, 1)  # a head has nothing to predict in it
STATES = random_states(TEXTS, 32)
STEPS = 16


def data(guessed: dict[int, Bool] | None = None) -> TrainingData:
    return TrainingData(texts=TEXTS, states=STATES, train=range(28), held_out=range(28, 30), guessed=guessed or {})  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="module")
def _saved_after_every_step() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flexspec.tuning.trainer._SAVE_EVERY_S", -1.0)
        patch.setattr("flexspec.tuning.trainer._CURVE_POINTS", 5)
        yield


class Training:
    """A training that may be interrupted in the report of some steps."""

    def __init__(self, folder: Path, kind: str = "head", *, seed: int = 0, guessed: dict[int, Bool] | None = None, **settings) -> None:
        self.folder = folder
        self.made = member(kind, seed=seed, depths=4)
        self.losses: list[float] = []
        self.totals: list[int] = []
        self.stop: int | None = None
        self.trainer = Trainer(
            self.made.objective,
            data(guessed),
            TrainingSettings(**{"passes": 4, "batch_tokens": 130, "learning_rate": 3e-3} | settings),
            checkpoint=folder / "draft.checkpoint",
            fingerprint=f"{kind}-{seed}",
            report=self._report,
        )

    def run(self, stop: int | None = None) -> Trained:
        self.stop = stop
        return self.trainer.run()

    @property
    def weights(self) -> dict[str, Tensor]:
        return weights_of(self.made.objective.module)

    def _report(self, step: int, total: int, loss: float) -> None:
        self.losses.append(loss)
        self.totals.append(total)
        if step == self.stop:
            raise KeyboardInterrupt


@pytest.fixture(scope="module", params=["head", "ssm"])
def unbroken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Training, Trained]:
    before = weights_of(loaded().module)
    training = Training(tmp_path_factory.mktemp("unbroken"), request.param)
    trained = training.run()
    assert same(before, weights_of(loaded().module)), "the LLM's weights are never changed"
    return request.param, training, trained


def test_it_learns_and_counts(unbroken: tuple[str, Training, Trained]) -> None:
    kind, training, trained = unbroken
    assert trained.steps == STEPS == len(training.losses) and set(training.totals) == {STEPS}
    assert sum(training.losses[-5:]) < sum(training.losses[:5])
    assert [point["step"] for point in trained.curve] == [4, 7, 10, 13, STEPS]
    assert [set(point) for point in trained.curve] == [{"step", "tokens", "loss", "by_depth", "counts"}] * 5
    answers = sum(int(one.is_answer[2 if kind == "head" else 1 :].sum()) for one in TEXTS[:28])
    assert trained.curve[-1]["tokens"] == trained.tokens == 4 * answers
    assert trained.rates.counts[0] == 6 and trained.curve[-1]["by_depth"] == trained.rates.by_depth


def test_interrupted_it_gives_what_an_unbroken_one_gives(tmp_path: Path, unbroken: tuple[str, Training, Trained]) -> None:
    kind, reference, expected = unbroken
    done = 0  # steps in the checkpoint: none before the pace is known, and a step's own comes after its report
    for stop in (1, 10, 11, 12, 12, 14, STEPS, None):
        training = Training(tmp_path, kind)
        if stop is None:
            assert training.run() == expected
        else:
            with pytest.raises(KeyboardInterrupt):
                training.run(stop)
        assert training.losses == reference.losses[done:stop]
        done = stop - 1 if stop is not None and stop > 11 else 0
    assert same(training.weights, reference.weights)
    assert [path.name for path in tmp_path.iterdir()] == ["draft.checkpoint"]


def test_after_the_end_nothing_is_done_again(unbroken: tuple[str, Training, Trained], tmp_path: Path) -> None:
    kind, reference, expected = unbroken
    again = Training(reference.folder, kind)
    assert again.run() == expected and again.losses == [] and same(again.weights, reference.weights)


def clock(monkeypatch: pytest.MonkeyPatch, seconds_a_step: float) -> None:
    times: Iterator[float] = itertools.chain([0.0], itertools.repeat(10 * seconds_a_step))
    monkeypatch.setattr("flexspec.tuning.trainer.monotonic", lambda: next(times))


def test_minutes_shorten_it_and_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 2.0)
    unbroken = Training(tmp_path / "a", minutes=28 / 60)
    trained = unbroken.run()
    assert trained.steps == 14 and unbroken.totals == [STEPS] * 10 + [14] * 4
    clock(monkeypatch, 2.0)
    with pytest.raises(KeyboardInterrupt):
        Training(tmp_path / "b", minutes=28 / 60).run(stop=13)
    clock(monkeypatch, 0.001)
    resumed = Training(tmp_path / "b", minutes=28 / 60)
    assert resumed.run() == trained and same(resumed.weights, unbroken.weights) and resumed.totals == [14] * 2


def test_no_time_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, 2.0)
    assert Training(tmp_path, minutes=1e-6).run().steps == 10


def test_another_seed_is_another_order(tmp_path: Path, unbroken: tuple[str, Training, Trained]) -> None:
    kind, reference, _ = unbroken
    other = Training(tmp_path, kind)
    other.trainer._settings = TrainingSettings(passes=4, batch_tokens=130, learning_rate=3e-3, seed=5)
    with pytest.raises(KeyboardInterrupt):
        other.run(stop=2)
    assert other.losses != reference.losses[:2]


def test_a_checkpoint_of_another_training(unbroken: tuple[str, Training, Trained]) -> None:
    kind, reference, _ = unbroken
    with pytest.raises(UsageError, match="belongs to another model, other texts or settings: give the same as before, or another --out"):
        Training(reference.folder, kind, seed=1)


def test_what_members_before_guessed_counts_less(tmp_path: Path) -> None:
    guessed = {number: one.is_answer & (np.arange(len(one.tokens)) % 2 == 0) for number, one in enumerate(TEXTS[:3])}
    training = Training(tmp_path, guessed=guessed, missed_weight=0.25, depth_decay=0.5)
    batch = make_batch(TEXTS, STATES, [0, 1, 3])  # type: ignore[arg-type]
    objective = training.made.objective
    said = objective.predict(batch, depths=objective.depths)
    weights = training.trainer._weights(batch, said)
    assert weights.shape == (4, 9)
    for row, (line, place) in enumerate(said.places.tolist()):
        number = batch.numbers[line]
        share = 0.25 if number in guessed and guessed[number][place] else 1.0
        assert weights[:, row].tolist() == [share * 0.5**depth if place - 2 >= depth else 0.0 for depth in range(4)]
    losses = distillation_loss(said.hidden, weights, said.target, objective.lm_head).detach()
    assert training.trainer._step(batch) == (pytest.approx(float(losses.sum() / weights.sum())), 9)


def test_the_second_member_of_a_pool_differs(tmp_path: Path) -> None:
    guessed: dict[int, Bool] = {number: one.is_answer & (one.tokens % 2 == 0) for number, one in enumerate(TEXTS)}
    first, second = Training(tmp_path / "first", "ssm"), Training(tmp_path / "second", "ssm", guessed=guessed)
    for training in (first, second):
        with pytest.raises(KeyboardInterrupt):
            training.run(stop=2)
    assert not same(first.weights, second.weights)


def test_batches_without_anything_to_predict(tmp_path: Path) -> None:
    training = Training(tmp_path)
    assert training.trainer._step(make_batch(TEXTS, STATES, [4])) == (0.0, 0)  # type: ignore[arg-type]
    assert all(value.isfinite().all() for value in training.weights.values())
    assert training.trainer._rate([4]).counts == [0, 0, 0, 0]
    assert torch.is_grad_enabled()
