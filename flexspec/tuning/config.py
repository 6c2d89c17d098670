"""What a tuning is asked for."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flexspec.errors import UsageError

Kind = Literal["head", "ssm"]
KINDS: Sequence[str] = ("head", "ssm")

HELD_OUT = 40
"""One text of so many is held out."""
FEWEST_TEXTS = 2 * HELD_OUT


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How one draft model is trained.

    Attributes:
        passes: over all texts.
        minutes: most minutes of training; None for no limit. It shortens the training before it has well begun.
        batch_tokens: tokens of a step, padding included.
        learning_rate: the highest; it rises over the first steps, then falls as a half cosine to a twentieth.
        depth_decay: each token that a head drafts deeper counts so much less.
        missed_weight: in a pool, tokens that a member before guessed count so much; the others count 1.
        seed: of the order of the texts and of new weights.
    """

    passes: int = 4
    minutes: float | None = None
    batch_tokens: int = 4096
    learning_rate: float = 6e-3
    depth_decay: float = 0.8
    missed_weight: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        _positive("passes", self.passes)
        _positive("batch-tokens", self.batch_tokens)
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise UsageError(f"minutes={self.minutes} is not allowed: give a number above 0")
        if not 0 < self.learning_rate < math.inf:
            raise UsageError(f"learning_rate={self.learning_rate} is not allowed: give a number above 0")
        for name in ("depth_decay", "missed_weight"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"{name}={getattr(self, name)} is not allowed: give a number from 0 to 1")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed={self.seed} is not allowed: give a whole number from 0 to 2**63 - 1")


@dataclass(frozen=True, kw_only=True)
class DraftModelSettings:
    """What is trained.

    Attributes:
        kind: `head`: one layer on the LLM's hidden states; `ssm`: a transformer of its own.
        layers: of an SSM, taken from the LLM's, the first and the last among them; a head has one.
        vocab_trim: it drafts only so many of the commonest tokens; None for all.
        depths: tokens that a head drafts on its own features in training.
    """

    kind: Kind = "head"
    layers: int | None = None
    vocab_trim: int | None = None
    depths: int = 3

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"kind={self.kind!r} is not allowed: give one of {', '.join(KINDS)}")
        if self.kind == "head" and self.layers not in (None, 1):
            raise UsageError(f"layers={self.layers} is not allowed for a head, which has one layer: leave it out, or give kind=ssm")
        _positive("layers", self.num_layers)
        _positive("depths", self.depths)
        if self.vocab_trim is not None and self.vocab_trim < 2:
            raise UsageError(f"vocab-trim={self.vocab_trim} is not allowed: give a number of tokens of at least 2")

    @property
    def num_layers(self) -> int:
        """Of the draft model."""
        return self.layers if self.layers is not None else (1 if self.kind == "head" else 2)


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """All of it.

    Attributes:
        model: as `flexspec.compile` takes it.
        draft_model: what is trained.
        training: how.
        pool: draft models, each trained on what those before it miss.
        data: a JSONL file of prompts; None if the model is to ask itself.
        num_prompts: most prompts, of the file or self-made.
        num_tokens: of all answers, about; no more are made once there are so many.
        answer_tokens: most tokens of an answer.
    """

    model: str
    draft_model: DraftModelSettings = field(default_factory=DraftModelSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    pool: int = 1
    data: str | None = None
    num_prompts: int | None = None
    num_tokens: int = 1_500_000
    answer_tokens: int = 160

    def __post_init__(self) -> None:
        for name in ("pool", "num_tokens", "answer_tokens"):
            _positive(name.replace("_", "-").removeprefix("num-"), getattr(self, name))
        if self.num_prompts is not None and self.num_prompts < FEWEST_TEXTS:
            raise UsageError(
                f"self-made={self.num_prompts} is not allowed: give at least {FEWEST_TEXTS} texts, of which one in {HELD_OUT} is held out"
            )

    def to_json(self) -> dict[str, Any]:
        """What the report keeps."""
        return asdict(self)


def _positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name}={value} is not allowed: give a whole number of at least 1")
