"""What `flexspec demo` shows: live text, the token tree of one step, and plain against speculative decoding."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from flexspec.api.llm import LLM
from flexspec.cli.comparison import Comparison, compare
from flexspec.cli.live_text import LiveText
from flexspec.cli.streaming import follow
from flexspec.cli.tree_view import ACCEPTED, draw, most_telling
from flexspec.config import SamplingParams
from flexspec.runtime.output import StepRecord

_ROUNDS = 2
_WARM_UP = SamplingParams(max_tokens=4)


def demonstrate(plain: LLM, speculative: LLM, texts: Sequence[str], params: SamplingParams, console: Console) -> Comparison:
    """Show speculation at work on chat prompts, then measure it.

    Args:
        plain: the model without drafters.
        speculative: the same model with them; it needs a tokenizer with a chat template.
        texts: what the user says.
        params: for all prompts.
        console: where to write.

    Raises:
        GenerationInterrupted: on Ctrl-C.
    """
    prompts = [[{"role": "user", "content": text}] for text in texts]
    records = _show_live(speculative, texts, prompts, params, console)
    _show_tree(speculative, records, console)
    # A line and not a spinner, which would take time from what is measured.
    console.print("\nMeasuring, plain and speculative in turn …\n", soft_wrap=True)
    plain.generate(prompts[:1], _WARM_UP)
    comparison = compare(plain, speculative, prompts, params, rounds=_ROUNDS)
    console.print(_table(comparison))
    same = "The texts are identical, token for token." if comparison.identical else "The texts DIFFER: this is a bug in flexspec."
    console.print(f"{same} Speedup {comparison.speedup:.2f}x.", soft_wrap=True)
    return comparison


def _show_live(llm: LLM, texts: Sequence[str], prompts: Sequence[Any], params: SamplingParams, console: Console) -> list[StepRecord]:
    assert llm.tokenizer is not None
    records: list[StepRecord] = []
    llm.own_engine.observer = records.append
    if console.is_terminal:
        console.print(Text.assemble("Tokens that were drafted and then accepted are ", ("marked", ACCEPTED), "."), soft_wrap=True)
    for text, prompt in zip(texts, prompts, strict=True):
        console.print(Text(f"\n> {text}", style="dim"), soft_wrap=True)
        console.print()
        live = LiveText(console, llm.tokenizer)
        follow(llm, prompt, params, live.write)
        console.print(Text(f" … (cut after {params.max_tokens} tokens)" if live.finish_reason == "length" else "", style="dim"))
    llm.own_engine.observer = None
    return records


def _show_tree(llm: LLM, records: Sequence[StepRecord], console: Console) -> None:
    assert llm.tokenizer is not None
    record = most_telling(records)
    if record is None:
        return
    console.print("\nThe token tree of one step, all of which the model checked in a single pass:", soft_wrap=True)
    console.print(draw(record, llm.tokenizer))


def _table(comparison: Comparison) -> Table:
    table = Table("", "tokens/s", "tokens a step", title="decoding, prefill left out", title_justify="left")
    for name, speed in (("plain", comparison.plain), ("speculative", comparison.speculative)):
        table.add_row(name, f"{speed.tokens_per_s:.1f}", f"{speed.tokens_per_step:.2f}")
    return table
