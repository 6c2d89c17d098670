"""Prompts that the user gives, answered by the model."""

from collections.abc import Sequence

from flexspec.api.prompts import PromptEncoder
from flexspec.bench.prompt_text import PromptText
from flexspec.errors import UsageError
from flexspec.runtime.engine import Engine
from flexspec.tuning.answers import Draft, answer
from flexspec.tuning.make_corpus import ROUND_SIZE


class UserPrompts:
    """The user's own prompts, in their order, answered greedily.

    Args:
        engine: of the model.
        prompts: token ids.
        max_tokens: most tokens of an answer.
    """

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], *, max_tokens: int) -> None:
        self._engine = engine
        self._prompts = prompts
        self._max_tokens = max_tokens

    def write_round(self, number: int, size: int) -> list[Draft]:
        """As `Source.write_round`."""
        start = number * ROUND_SIZE
        drafts = [Draft(tokens=list(prompt)) for prompt in self._prompts[start : start + size]]
        return answer(self._engine, drafts, max_tokens=self._max_tokens, temperature=0.0, seeds=range(len(drafts)))


def usable_prompts(texts: Sequence[PromptText], encoder: PromptEncoder, *, has_template: bool, room: int) -> list[list[int]]:
    """The token ids of the prompts that have text and fit.

    Args:
        texts: as the user gave them.
        encoder: of the model.
        has_template: whether it has a chat template, which what users say goes through.
        room: most tokens of a prompt.

    Raises:
        UsageError: if none is left.
    """
    with_text = [text for text in texts if text.text.strip()]
    encoded = [
        encoder.chat([{"role": "user", "content": one.text}]) if one.chat and has_template else encoder.encode(one.text)
        for one in with_text
    ]
    usable = [prompt for prompt in encoded if len(prompt) <= room]
    if not usable:
        raise UsageError(
            f"none of the {len(texts)} prompts can be used: {len(texts) - len(with_text)} have no text, {len(with_text)} are longer than "
            f"{room} tokens; give prompts with text that leaves room for an answer"
        )
    return usable
