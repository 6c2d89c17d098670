"""The parts of `flexspec demo`, on a tiny model."""

import io

from rich.console import Console

import flexspec
from flexspec.cli.demonstration import demonstrate
from flexspec.cli.live_text import LiveText
from flexspec.cli.tree_view import ACCEPTED, draw, most_telling
from flexspec.runtime.output import StepRecord
from flexspec.runtime.token_tree import TokenTree
from tiny_models import tiny_tokenizer


def text_console(*, colour: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=colour, color_system="standard" if colour else None, width=100, highlight=False)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_plain_and_speculative_are_shown_and_compared(model_folder: str, plain_llm: flexspec.LLM) -> None:
    speculative = flexspec.compile(model_folder, ssms=["ngram"], tree=[2, 1, 1], dtype="float32", max_len=512)
    console = text_console()
    texts = ["hello hello hello", "the [bold]cat[/bold]"]
    comparison = demonstrate(plain_llm, speculative, texts, flexspec.SamplingParams(max_tokens=60), console)
    assert comparison.identical
    assert comparison.plain.tokens_per_step == 1 < comparison.speculative.tokens_per_step
    assert comparison.plain.tokens_per_s > 0 and comparison.speculative.tokens_per_s > 0
    for text, output in zip(texts, comparison.outputs, strict=True):
        assert f"> {text}" in shown(console) and output.text in shown(console)
    assert all(word in shown(console) for word in ("accepted", "speculative", "identical", "Speedup"))

    sampled = flexspec.SamplingParams(max_tokens=60, temperature=1.0)
    comparison = demonstrate(plain_llm, speculative, texts, sampled, text_console())
    assert not comparison.identical  # without a seed every request draws its own


def test_accepted_text_is_coloured_and_nothing_is_lost() -> None:
    tokenizer = tiny_tokenizer()
    ids = tokenizer("hello 日本")["input_ids"]
    console = text_console(colour=True)
    live = LiveText(console, tokenizer)
    hello = len(tokenizer("hello")["input_ids"])
    chunk = flexspec.Chunk(request_id=0, token_ids=ids[: hello + 1], num_accepted=hello, text="hello ", output=None)
    live.write(chunk)
    # The first of its tokens ends inside a character, whose text comes with the next chunk.
    live.write(flexspec.Chunk(request_id=0, token_ids=ids[hello + 1 :], num_accepted=1, text="日本", output=None))
    assert "\x1b[1;32mhello\x1b[0m" in shown(console)
    assert "".join(part.split("m", 1)[-1] for part in shown(console).split("\x1b[")) == "hello 日本"


def test_the_tree_of_a_step() -> None:
    tokenizer = tiny_tokenizer()
    a, b, c, d = (tokenizer(letter)["input_ids"][0] for letter in "abcd")
    dull = StepRecord(request_id=0, tree=TokenTree.root(a), path=[0], token_ids=[b])
    telling = StepRecord(request_id=0, tree=TokenTree(tokens=(a, b, c, d), parents=(-1, 0, 1, 0)), path=[0, 1], token_ids=[b, d])
    chain = StepRecord(request_id=0, tree=TokenTree(tokens=(a, b), parents=(-1, 0)), path=[0, 1], token_ids=[b, d])
    assert most_telling([dull]) is None
    assert most_telling([dull, chain, telling]) is telling
    console = text_console()
    console.print(draw(telling, tokenizer))
    lines = [line.strip("│ ├└─") for line in shown(console).splitlines()]
    assert lines == ["'a'", "'b' accepted", "'c' rejected", "'d' added by the model", "'d' rejected"]
    coloured = text_console(colour=True)
    coloured.print(draw(telling, tokenizer))
    assert ACCEPTED == "bold green" and "\x1b[1;32m'b' accepted" in shown(coloured)
