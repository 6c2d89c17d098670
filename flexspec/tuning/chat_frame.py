"""Where turns begin and end in a model's chat template."""

from dataclasses import dataclass

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

_TURNS = ("#0#first question#0#", "#1#answer#1#", "#2#second question#2#")


@dataclass(frozen=True, kw_only=True)
class ChatFrame:
    """Token ids around the turns of a conversation.

    Attributes:
        opening: what precedes the first question.
        answer: between a question and its answer.
        question: between an answer and the next question.
    """

    opening: tuple[int, ...]
    answer: tuple[int, ...]
    question: tuple[int, ...]

    def next_question(self, text: list[int]) -> list[int]:
        """`text` and what leads from its last answer to the next question; an end of turn that the answer has is not repeated."""
        if text and text[-1] == self.question[0]:
            return text + list(self.question[1:])
        return text + list(self.question)


def chat_frame(tokenizer: PreTrainedTokenizerBase) -> ChatFrame | None:
    """The frame of a tokenizer's chat template; None if it has none, or one that changes what is said or refuses a plain conversation."""
    if not tokenizer.chat_template:
        return None
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, _TURNS, strict=True)]
    try:
        text = str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except TemplateError:
        return None
    pieces = []
    for turn in _TURNS:
        before, found, text = text.partition(turn)
        if not found:
            return None
        pieces.append(tuple(int(token) for token in tokenizer(before, add_special_tokens=False)["input_ids"]))
    opening, answer, question = pieces
    if not opening or not answer or not question:
        return None
    return ChatFrame(opening=opening, answer=answer, question=question)
