"""What users give as prompts → token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from flexspec.errors import UsageError

Message = Mapping[str, str]
Prompt = str | Sequence[int] | Sequence[Message]
_MESSAGE = "{'role': 'user', 'content': 'Hello'}"
_ALLOWED = f"give a string, a list of token ids, or a list of chat messages such as {_MESSAGE}"


def is_single(prompts: Any) -> bool:
    """Whether `prompts` is one prompt and not a list of them."""
    if isinstance(prompts, str):
        return True
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes | bytearray):
        raise UsageError(f"prompt {prompts!r} is not allowed: {_ALLOWED}, or a list of these")
    return bool(prompts) and isinstance(prompts[0], int | Mapping)


class PromptEncoder:
    """Encodes prompts with a model's tokenizer.

    Args:
        tokenizer: None allows token ids only.
        bos_token_id: what an empty prompt becomes; None refuses it.
        name: the model's name, for messages.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, *, bos_token_id: int | None, name: str) -> None:
        self._tokenizer = tokenizer
        self._bos_token_id = bos_token_id
        self._name = name

    def encode(self, prompt: Any) -> list[int]:
        """Token ids of one prompt: strings as they are, chat messages through the chat template.

        Raises:
            UsageError: if the prompt is of no known kind, is empty, or needs a tokenizer that is not there.
        """
        if isinstance(prompt, str):
            ids = self._text(prompt)
        elif isinstance(prompt, bytes | bytearray):
            raise UsageError(f"prompt {prompt!r} is not allowed: {_ALLOWED}")
        elif isinstance(prompt, Sequence) and all(isinstance(token, int) and not isinstance(token, bool) for token in prompt):
            ids = list(prompt)
        elif isinstance(prompt, Sequence) and all(isinstance(message, Mapping) for message in prompt):
            ids = self.chat(prompt)
        else:
            raise UsageError(f"prompt {prompt!r} is not allowed: {_ALLOWED}")
        if ids:
            return ids
        if self._bos_token_id is None:
            raise UsageError(f"the prompt is empty and model {self._name} has no beginning-of-sequence token: give at least one token")
        return [self._bos_token_id]

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, ending where the assistant's answer begins.

        Raises:
            UsageError: if it is no conversation, or the model has no chat template, or one that objects to it.
        """
        tokenizer = self._need_tokenizer("chat messages")
        if not tokenizer.chat_template:
            raise UsageError(f"model {self._name} has no chat template: give the prompt as a string")
        if isinstance(messages, str) or not isinstance(messages, Sequence):
            raise UsageError(f"conversation {messages!r} is not allowed: give a list of messages such as {_MESSAGE}")
        wrong = next((one for one in messages if not isinstance(one, Mapping) or not {"role", "content"} <= set(one)), None)
        if wrong is not None:
            raise UsageError(f"chat message {wrong!r} is not allowed: give 'role' and 'content', for example {_MESSAGE}")
        conversation = [dict(message) for message in messages]
        try:
            encoded: Any = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=True, return_dict=True)
        except TemplateError as error:
            raise UsageError(f"the chat template of model {self._name} refuses this conversation: {error}; give what it allows") from error
        return [int(token) for token in encoded["input_ids"]]

    def _text(self, prompt: str) -> list[int]:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"prompt {prompt!r} is not valid Unicode at character {error.start}: give text that UTF-8 can encode"
            ) from None
        return [int(token) for token in self._need_tokenizer("text")(prompt)["input_ids"]]

    def _need_tokenizer(self, kind: str) -> PreTrainedTokenizerBase:
        if self._tokenizer is None:
            raise UsageError(
                f"model {self._name} has no tokenizer, so prompts can't be {kind}: put its tokenizer.json beside the model's files, or "
                "give token ids or tokenizer=… from Python"
            )
        return self._tokenizer
