"""Plain against speculative decoding of the same prompts, measured in turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.api.llm import LLM
from flexspec.config import SamplingParams
from flexspec.runtime.output import Output


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How fast one side was.

    Attributes:
        tokens_per_s: tokens after the first of each text, a second, prefill left out.
        tokens_per_step: tokens of an LLM pass.
    """

    tokens_per_s: float
    tokens_per_step: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two ways of decoding the same prompts.

    Attributes:
        plain: without drafts.
        speculative: with them.
        identical: whether both gave the same tokens for every prompt, every time.
        outputs: the speculative outputs, in the order of the prompts.
    """

    plain: Speed
    speculative: Speed
    identical: bool
    outputs: Sequence[Output]

    @property
    def speedup(self) -> float:
        """Speculative tokens a second over plain ones."""
        return self.speculative.tokens_per_s / self.plain.tokens_per_s if self.plain.tokens_per_s else 0.0


def compare(plain: LLM, speculative: LLM, prompts: Sequence[Any], params: SamplingParams, *, rounds: int) -> Comparison:
    """Decode every prompt both ways, in turn, so that a busy machine slows both alike.

    Args:
        plain: compiled without drafters.
        speculative: compiled with them.
        prompts: as `LLM.generate` takes them.
        params: for all prompts.
        rounds: how often each prompt is decoded each way; each round swaps who goes first.

    Raises:
        GenerationFailed: if a text could not go on.
    """
    sides: dict[bool, list[Output]] = {False: [], True: []}  # by whether drafts were used
    for index in range(rounds):
        for prompt in prompts:
            for drafts in (False, True) if index % 2 == 0 else (True, False):
                llm = speculative if drafts else plain
                sides[drafts] += llm.generate([prompt], params)
    for output in sides[False] + sides[True]:
        output.raise_for_error()
    tokens = {drafts: [output.token_ids for output in outputs] for drafts, outputs in sides.items()}
    return Comparison(
        plain=_speed(sides[False]),
        speculative=_speed(sides[True]),
        identical=tokens[False] == tokens[True] == tokens[True][: len(prompts)] * rounds,
        outputs=sides[True][: len(prompts)],
    )


def _speed(outputs: Sequence[Output]) -> Speed:
    stats = [output.stats for output in outputs]
    seconds = sum(one.decode_s for one in stats)
    return Speed(
        tokens_per_s=sum(one.new_tokens - 1 for one in stats) / seconds if seconds else 0.0,
        tokens_per_step=sum(one.new_tokens for one in stats) / max(sum(one.steps for one in stats), 1),
    )
