"""Where turns begin and end."""

from flexspec.tuning.chat_frame import chat_frame
from tiny_models import tiny_tokenizer

CHATML = (
    "<bos>{% for message in messages %}<pad>{{ message['role'] }}\n{{ message['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<pad>assistant\n{% endif %}"
)


def test_turns_of_a_template() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML
    frame = chat_frame(tokenizer)
    assert frame is not None
    assert tokenizer.decode(frame.opening) == "<bos><pad>user\n"
    assert tokenizer.decode(frame.answer) == "<eos>\n<pad>assistant\n"
    assert tokenizer.decode(frame.question) == "<eos>\n<pad>user\n"
    conversation = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert [*frame.opening, *tokenizer("the")["input_ids"], *frame.answer] == conversation


def test_an_end_of_turn_is_not_repeated() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHATML
    frame = chat_frame(tokenizer)
    assert frame is not None
    (eos,) = tokenizer("<eos>")["input_ids"]
    assert frame.next_question([5, eos]) == [5, *frame.question] == frame.next_question([5])
