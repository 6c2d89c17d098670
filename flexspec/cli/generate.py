"""`flexspec generate`: complete one prompt, streaming, or a file of prompts, batched."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flexspec.bench.prompt_text import PromptText
from flexspec.cli.exit_status import INTERRUPTED
from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.options import DtypeOption, JsonOption, ModelArgument, SsmOption, TreeOption, VerifierOption, chosen_ssms
from flexspec.cli.prompts_file import read_prompts
from flexspec.errors import UsageError

if TYPE_CHECKING:
    from flexspec import LLM, Chunk, Output, SamplingParams


def generate(
    model: ModelArgument,
    ssm: SsmOption = None,
    prompt: Annotated[str | None, typer.Option(help="The text to complete.", show_default=False)] = None,
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", show_default=False, help='Many prompts: {"prompt": "text"} or {"id", "category", "turns"} on each line.'
        ),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the chat template; rows with turns always are.")] = False,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens at most.")] = 128,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(metavar="K", help="Keep the K likeliest tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens that make up P; 1 keeps all.")] = 1.0,
    min_p: Annotated[float, typer.Option(metavar="P", help="Drop tokens below P times the likeliest; 0 keeps all.")] = 0.0,
    seed: Annotated[int | None, typer.Option(metavar="N", show_default=False, help="The same seed gives the same text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", show_default=False, help="End before this text; repeatable.")] = None,
    dtype: DtypeOption = None,
    tree: TreeOption = None,
    verifier: VerifierOption = None,
    strategy: Annotated[str, typer.Option(metavar="auto|FILE", help="How to run: auto, or a saved strategy.")] = "auto",
    max_batch: Annotated[int | None, typer.Option(metavar="N", show_default=False, help="Prompts at once, at most.")] = None,
    max_len: Annotated[int | None, typer.Option(metavar="N", show_default=False, help="Tokens of a request, prompt included.")] = None,
    json_file: JsonOption = None,
) -> None:
    """Complete one prompt, streaming its text, or a file of prompts as a batch."""
    from flexspec import SamplingParams
    from flexspec.cli.compiling import compile_model

    rows = _rows(prompt, prompts_file, chat)
    check_writable(json_file)
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, max_tokens=max_tokens, seed=seed, stop=stop or ()
    )
    if max_batch is None and strategy == "auto":
        max_batch = min(len(rows), 8)
    options = {"dtype": dtype, "tree": tree, "verifier": verifier, "max_batch": max_batch, "max_len": max_len}
    llm = compile_model(model, chosen_ssms(ssm), strategy=strategy, **options)
    outputs, interrupted = _stream(llm, rows[0], params) if prompts_file is None else _batch(llm, rows, params)
    print(_summary(outputs), file=sys.stderr)
    write_json(json_file, {"model": model, "outputs": [_record(row, output) for row, output in zip(rows, outputs, strict=False)]})
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _rows(prompt: str | None, prompts_file: Path | None, chat: bool) -> list[PromptText]:
    if (prompt is None) == (prompts_file is None):
        raise UsageError("give either --prompt TEXT or --prompts-file FILE.jsonl")
    if prompt is not None:
        return [PromptText(id="1", category="", text=prompt, chat=chat)]
    assert prompts_file is not None
    return [replace(row, chat=row.chat or chat) for row in read_prompts(prompts_file)]


def _prompt(row: PromptText) -> str | list[dict[str, str]]:
    return [{"role": "user", "content": row.text}] if row.chat else row.text


def _stream(llm: "LLM", row: PromptText, params: "SamplingParams") -> tuple[list["Output"], bool]:
    from flexspec import GenerationInterrupted
    from flexspec.cli.streaming import follow

    outputs: list[Output] = []
    shown = 0

    def show(chunk: "Chunk") -> None:
        nonlocal shown
        print(chunk.text, end="", flush=True)
        shown += len(chunk.text)
        if chunk.output is not None:
            outputs.append(chunk.output)

    interrupted = False
    try:
        follow(llm, _prompt(row), params, show)
    except GenerationInterrupted as interrupt:
        outputs, interrupted = interrupt.outputs, True
        print("".join(output.text for output in outputs)[shown:], end="")
    print()
    return outputs, interrupted


def _batch(llm: "LLM", rows: Sequence[PromptText], params: "SamplingParams") -> tuple[list["Output"], bool]:
    from flexspec import GenerationInterrupted

    interrupted = False
    try:
        outputs = llm.generate([_prompt(row) for row in rows], params)
    except GenerationInterrupted as interrupt:
        outputs, interrupted = interrupt.outputs, True
    for row, output in zip(rows, outputs, strict=False):
        print(f"[{row.id}] {output.text}")
    return outputs, interrupted


def _summary(outputs: Sequence["Output"]) -> str:
    stats = [output.stats for output in outputs]
    new_tokens, steps = sum(one.new_tokens for one in stats), sum(one.steps for one in stats)
    drafted, accepted = sum(one.drafted for one in stats), sum(one.accepted for one in stats)
    reasons = [output.finish_reason for output in outputs]
    ended = ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons))
    line = f"{new_tokens} tokens ({ended or 'nothing was produced'}), {new_tokens / max(steps, 1):.2f} a step"
    line += f", {accepted} of {drafted} drafted ones accepted"
    if len(stats) == 1 and stats[0].decode_s > 0:
        line += f"; {stats[0].decode_tokens_per_s:.1f} tokens/s after {stats[0].prefill_s:.2f} s of prefill"
    return line


def _record(row: PromptText, output: "Output") -> dict[str, Any]:
    stats = asdict(output.stats)
    stats |= {name: getattr(output.stats, name) for name in ("tokens_per_step", "acceptance_rate", "decode_tokens_per_s")}
    return {
        "id": row.id,
        "prompt": row.text,
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "stats": stats,
    }
