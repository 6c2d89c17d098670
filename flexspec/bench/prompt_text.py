"""Prompts before they are encoded."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flexspec.api.llm import LLM


@dataclass(frozen=True, kw_only=True)
class PromptText:
    """A prompt of a file.

    Attributes:
        id: its name.
        category: what it is grouped by.
        text: the prompt; of a conversation, the first turn.
        chat: True if it is what a user says in a conversation, and so wants the chat template; False if it is raw text.
    """

    id: str
    category: str
    text: str
    chat: bool


def encode_text(llm: "LLM", text: PromptText) -> list[int]:
    """Token ids: what a user says goes through the chat template if the model has one, all else is taken as it is.

    Raises:
        UsageError: if the model has no tokenizer.
    """
    templated = llm.tokenizer is not None and bool(llm.tokenizer.chat_template)
    return llm.encode([{"role": "user", "content": text.text}] if text.chat and templated else text.text)
