"""`flexspec generate`: complete one prompt, streaming, or a file of prompts, batched."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flexspec.bench.prompt_text import PromptText
from flexspec.cli.exit_status import GENERATION_FAILED, INTERRUPTED
from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.launch import is_first_rank, is_rank, launch, ranks_to_start
from flexspec.cli.log_lines import log_lines
from flexspec.cli.logprobs_json import logprobs_json
from flexspec.cli.options import (
    DeviceOption,
    DtypeOption,
    JsonOption,
    KvCacheDtypeOption,
    LogEveryOption,
    ModelArgument,
    ReferenceKernelsOption,
    SsmOption,
    StatisticsOption,
    TreeOption,
    VerifierOption,
    chosen_ssms,
)
from flexspec.cli.prompts_file import read_prompts
from flexspec.cli.sampling_options import (
    CompletionsOption,
    FrequencyPenaltyOption,
    JsonSchemaOption,
    LogitBiasOption,
    LogprobsOption,
    MaxTokensOption,
    MinPOption,
    MinTokensOption,
    PresencePenaltyOption,
    PromptLogprobsOption,
    RegexOption,
    RepetitionPenaltyOption,
    SeedOption,
    StopOption,
    StopTokenOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    chosen_biases,
    chosen_grammar,
)
from flexspec.errors import UsageError
from flexspec.parallel import DEFAULT_RANK_TIMEOUT_S

if TYPE_CHECKING:
    from flexspec import LLM, Chunk, Output, SamplingParams


def generate(
    context: typer.Context,
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
    max_tokens: MaxTokensOption = 128,
    min_tokens: MinTokensOption = 0,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    presence_penalty: PresencePenaltyOption = 0.0,
    frequency_penalty: FrequencyPenaltyOption = 0.0,
    repetition_penalty: RepetitionPenaltyOption = 1.0,
    logit_bias: LogitBiasOption = None,
    seed: SeedOption = None,
    n: CompletionsOption = 1,
    stop: StopOption = None,
    stop_token_id: StopTokenOption = None,
    json_schema: JsonSchemaOption = None,
    regex: RegexOption = None,
    logprobs: LogprobsOption = None,
    prompt_logprobs: PromptLogprobsOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    allow_reference_kernels: ReferenceKernelsOption = False,
    tree: TreeOption = None,
    verifier: VerifierOption = None,
    strategy: Annotated[str, typer.Option(metavar="auto|FILE", help="How to run: auto, or a saved strategy.")] = "auto",
    max_batch: Annotated[int | None, typer.Option(metavar="N", show_default=False, help="Prompts at once, at most.")] = None,
    max_len: Annotated[int | None, typer.Option(metavar="N", show_default=False, help="Tokens of a request, prompt included.")] = None,
    statistics: StatisticsOption = None,
    rank_timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="With a strategy for several devices: when a rank counts as hanging.")
    ] = DEFAULT_RANK_TIMEOUT_S,
    log_every: LogEveryOption = None,
    json_file: JsonOption = None,
) -> None:
    """Complete one prompt, streaming its text, or a file of prompts as a batch."""
    from flexspec import SamplingParams

    rows = _rows(prompt, prompts_file, chat)
    if json_file is None and (logprobs is not None or prompt_logprobs is not None):
        raise UsageError("--logprobs and --prompt-logprobs are written to a file: give --json FILE as well")
    check_writable(json_file)
    check_writable(statistics, "--statistics")
    params = SamplingParams(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        repetition_penalty=repetition_penalty,
        logit_bias=chosen_biases(logit_bias),
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=stop or (),
        stop_token_ids=stop_token_id or (),
        seed=seed,
        grammar=chosen_grammar(json_schema, regex),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        n=n,
    )
    if (ranks := ranks_to_start(strategy)) > 1:
        raise typer.Exit(launch(context.obj, ranks))
    if max_batch is None and strategy == "auto":
        max_batch = min(len(rows) * n, 8)
    from flexspec.cli.compiling import compile_model

    llm = compile_model(
        model,
        chosen_ssms(ssm),
        strategy=strategy,
        dtype=dtype,
        device=device,
        kv_cache_dtype=kv_cache_dtype,
        allow_reference_kernels=allow_reference_kernels,
        tree=tree,
        verifier=verifier,
        max_batch=max_batch,
        max_len=max_len,
        statistics=statistics,
        log_every_s=log_every,
        rank_timeout_s=rank_timeout,
    )
    with log_lines(log_every):
        outputs, interrupted = _stream(llm, rows[0], params) if prompts_file is None and n == 1 else _batch(llm, rows, params)
    errors = [output.error for output in outputs if output.error is not None]
    if is_rank():
        llm.close()
    if not is_first_rank():
        raise typer.Exit(INTERRUPTED if interrupted else GENERATION_FAILED if errors else 0)
    print(_summary(outputs), file=sys.stderr)
    records = [_record(row, output) for row, output in zip(_repeated(rows, n), outputs, strict=False)]
    write_json(json_file, {"model": model, "outputs": records})
    if statistics is not None:
        llm.save_statistics()
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if errors:
        print(f"{len(errors)} of {len(outputs)} texts could not go on: {errors[0]}", file=sys.stderr)
        raise typer.Exit(GENERATION_FAILED)


def _rows(prompt: str | None, prompts_file: Path | None, chat: bool) -> list[PromptText]:
    if (prompt is None) == (prompts_file is None):
        raise UsageError("give either --prompt TEXT or --prompts-file FILE.jsonl")
    if prompt is not None:
        return [PromptText(id="1", category="", text=prompt, chat=chat)]
    assert prompts_file is not None
    return [replace(row, chat=row.chat or chat) for row in read_prompts(prompts_file)]


def _repeated(rows: Sequence[PromptText], n: int) -> list[PromptText]:
    """Each row as often as it is completed."""
    return [row for row in rows for _ in range(n)]


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
    for row, output in zip(_repeated(rows, params.n), outputs, strict=False):
        name = row.id if params.n == 1 else f"{row.id}/{output.completion}"
        print(f"[{name}] {output.text}")
    return outputs, interrupted


def _summary(outputs: Sequence["Output"]) -> str:
    stats = [output.stats for output in outputs]
    new_tokens, steps = sum(one.new_tokens for one in stats), sum(one.steps for one in stats)
    drafted, accepted = sum(one.drafted for one in stats), sum(one.accepted for one in stats)
    reasons = [output.finish_reason for output in outputs]
    if not outputs:
        return "0 tokens: nothing was produced"
    if len(outputs) == 1:
        line = f"{new_tokens} tokens, ended by {reasons[0]}"
    else:
        ended = ", ".join(f"{reasons.count(reason)} by {reason}" for reason in dict.fromkeys(reasons))
        line = f"{new_tokens} tokens in {len(outputs)} texts, ended {ended}"
    line += f"; {new_tokens / max(steps, 1):.2f} tokens a step"
    line += f", {accepted} of {drafted} drafted ones accepted"
    if len(stats) == 1 and stats[0].decode_s > 0:
        line += f"; {stats[0].decode_tokens_per_s:.1f} tokens/s after {stats[0].prefill_s:.2f} s of prefill"
    return line


def _record(row: PromptText, output: "Output") -> dict[str, Any]:
    return {
        "id": row.id,
        "prompt": row.text,
        "completion": output.completion,
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "error": output.error,
        "logprobs": logprobs_json(output.logprobs),
        "prompt_logprobs": logprobs_json(output.prompt_logprobs),
        "stats": output.stats.to_json(),
    }
