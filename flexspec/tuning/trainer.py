"""Trains one draft model: the loop, its schedule, its learning curve, and how it goes on after it was stopped."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from flexspec.tuning.batches import TextBatch, iterate_batches, plan_batches
from flexspec.tuning.checkpoint import Progress, load_checkpoint, save_checkpoint, trainable
from flexspec.tuning.config import TrainingSettings
from flexspec.tuning.corpus import Bool, Text
from flexspec.tuning.distillation import distillation_loss
from flexspec.tuning.evaluation import HitRates, RankTable
from flexspec.tuning.objective import Objective, Predictions
from flexspec.tuning.optimizer import MatrixOptimizer
from flexspec.tuning.states import StateFile

_WARM_UP_STEPS = 100
_LAST_RATE = 0.05
_LARGEST_NORM = 1.0
_PACE_STEPS = 10
"""Steps after which it is known how many fit into the time."""
_CURVE_POINTS = 24
_CURVE_TEXTS = 48
_SAVE_EVERY_S = 120.0
_CURVE_DEPTHS = 4


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """What a draft model is trained on.

    Attributes:
        texts: all of them.
        states: the LLM's hidden states over them.
        train: numbers of the texts to train on.
        held_out: numbers of the others.
        guessed: by text, [tokens] whether an earlier draft model guesses a token; without an entry none is guessed.
    """

    texts: Sequence[Text]
    states: StateFile
    train: Sequence[int]
    held_out: Sequence[int]
    guessed: dict[int, Bool]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a training.

    Attributes:
        steps: steps made.
        tokens: answer tokens seen, with repetition.
        curve: held-out hit rates against tokens seen.
        rates: held-out, of the trained model.
    """

    steps: int
    tokens: int
    curve: list[dict[str, Any]]
    rates: HitRates


class Trainer:
    """Minimises the distillation loss.

    Args:
        objective: the draft model; is trained in place.
        data: what on.
        settings: how.
        checkpoint: file to go on from if it exists, and to keep up to date.
        fingerprint: of model, texts and settings.
        report: told (steps done, of how many, loss) after every step.
    """

    def __init__(
        self,
        objective: Objective,
        data: TrainingData,
        settings: TrainingSettings,
        *,
        checkpoint: Path,
        fingerprint: str,
        report: Callable[[int, int, float], None],
    ) -> None:
        self._objective = objective
        self._data = data
        self._settings = settings
        self._checkpoint = checkpoint
        self._fingerprint = fingerprint
        self._report = report
        self._parameters = trainable(objective.module)
        self._optimizer = MatrixOptimizer(self._parameters.values())
        self._progress = Progress(fingerprint=fingerprint, num_steps=self._planned_steps())
        if checkpoint.exists():
            self._progress = load_checkpoint(checkpoint, objective.module, self._optimizer, fingerprint=fingerprint)

    def run(self) -> Trained:
        """Train to the end."""
        data, settings, progress = self._data, self._settings, self._progress
        batches = iterate_batches(
            data.texts, data.states, batch_tokens=settings.batch_tokens, seed=settings.seed, start=progress.step, numbers=data.train
        )
        began = saved = monotonic()
        while progress.step < progress.num_steps:
            loss, count = self._step(next(batches))
            progress.step, progress.tokens = progress.step + 1, progress.tokens + count
            self._report(progress.step, progress.num_steps, loss)
            if progress.step == _PACE_STEPS and settings.minutes is not None:
                pace = (monotonic() - began) / _PACE_STEPS
                progress.num_steps = max(min(progress.num_steps, int(60 * settings.minutes / pace)), _PACE_STEPS)
            if self._is_curve_point():
                rates = self._rate(data.held_out[:_CURVE_TEXTS])
                progress.curve.append({"step": progress.step, "tokens": progress.tokens, "loss": round(loss, 4), **vars(rates)})
            is_last = progress.step == progress.num_steps
            if is_last or (progress.step > _PACE_STEPS and monotonic() - saved > _SAVE_EVERY_S):
                save_checkpoint(self._checkpoint, self._objective.module, self._optimizer, progress)
                saved = monotonic()
        return Trained(steps=progress.step, tokens=progress.tokens, curve=progress.curve, rates=self._rate(data.held_out))

    def _step(self, batch: TextBatch) -> tuple[float, int]:
        """One step; the loss of a predicted token, and how many there were."""
        objective, progress = self._objective, self._progress
        said = objective.predict(batch, depths=objective.depths)
        weights = self._weights(batch, said)
        losses = distillation_loss(said.hidden, weights, said.target, objective.lm_head)
        loss = losses.sum() / weights.sum().clamp(min=1e-6)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._parameters.values(), _LARGEST_NORM)
        self._optimizer.step(self._settings.learning_rate * _schedule(progress.step, progress.num_steps))
        return loss.item(), len(said.token_ids)

    def _weights(self, batch: TextBatch, said: Predictions) -> Tensor:
        """[depths, rows] of the predicted tokens in the loss."""
        guessed = torch.zeros(batch.token_ids.shape, dtype=torch.bool)
        for row, number in enumerate(batch.numbers):
            if number in self._data.guessed:
                hits = self._data.guessed[number]
                guessed[row, : len(hits)] = torch.from_numpy(hits)
        rows, tokens = said.places.unbind(dim=1)
        weights = torch.where(guessed[rows, tokens], self._settings.missed_weight, 1.0)
        depths = self._settings.depth_decay ** torch.arange(len(said.hidden))
        return depths[:, None] * weights * said.is_valid

    def _is_curve_point(self) -> bool:
        progress = self._progress
        point, before = (step * _CURVE_POINTS // progress.num_steps for step in (progress.step, progress.step - 1))
        return point > before

    def _rate(self, numbers: Sequence[int]) -> HitRates:
        table = RankTable(self._objective, depths=_CURVE_DEPTHS)
        for number in numbers:
            table.add(self._data.texts, self._data.states, number)
        return table.rates()

    def _planned_steps(self) -> int:
        lengths = [len(self._data.texts[number].tokens) for number in self._data.train]
        settings = self._settings
        return settings.passes * len(plan_batches(lengths, batch_tokens=settings.batch_tokens, seed=settings.seed, turn=0))


def _schedule(step: int, num_steps: int) -> float:
    """The share of the highest learning rate."""
    warm_up = min((step + 1) / min(_WARM_UP_STEPS, max(num_steps // 10, 1)), 1.0)
    return warm_up * (_LAST_RATE + (1 - _LAST_RATE) * 0.5 * (1 + math.cos(math.pi * step / num_steps)))
