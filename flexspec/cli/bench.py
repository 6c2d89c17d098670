"""`flexspec bench`: plain, speculative and other systems on the same prompts, interleaved."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.options import DtypeOption, JsonOption, LimitOption, ModelArgument, SsmOption, TreeOption, VerifierOption, chosen_ssms
from flexspec.cli.prompts_file import read_prompts, stratified

if TYPE_CHECKING:
    from flexspec.bench.run import BenchResult

_NATIVE_TARGET = "cpu-native"


def bench(
    model: ModelArgument,
    prompts: Annotated[
        Path,
        typer.Option(metavar="FILE.jsonl", show_default=False, help='{"id", "category", "turns"} on each line; first turns count.'),
    ],
    ssm: SsmOption = None,
    limit: LimitOption = None,
    dtype: DtypeOption = None,
    tree: TreeOption = None,
    verifier: VerifierOption = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens at most; an end-of-sequence token ends a text earlier.")] = 128,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens that make up P; 1 keeps all.")] = 1.0,
    against: Annotated[
        str, typer.Option(metavar="NAMES", show_default=False, help="Peers, separated by commas: hf, hf-lookup, llama.cpp.")
    ] = "",
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a decode step goes.")] = False,
    json_file: JsonOption = None,
) -> None:
    """Measure decoding speed: flexspec plain and speculative, and its peers, on the same token ids in the same dtype."""
    from flexspec.bench.measurement import GenerationSettings
    from flexspec.bench.run import BenchConfig, run_bench

    check_writable(json_file)
    texts = stratified(read_prompts(prompts), limit)
    config = BenchConfig(
        model=model,
        ssms=chosen_ssms(ssm),
        dtype=dtype,
        tree=tree,
        verifier=verifier,
        settings=GenerationSettings(max_tokens=max_tokens, temperature=temperature, top_p=top_p),
        against=list(dict.fromkeys(name.strip() for name in against.split(",") if name.strip())),
    )
    result = run_bench(config, texts, Console(stderr=True).print)
    write_json(json_file, result.to_json())
    _show(result, profile=profile)


def _show(result: "BenchResult", *, profile: bool) -> None:
    from flexspec.bench.tables import profile_table, ratio_table, speed_table

    console = Console(highlight=False)
    console.print(speed_table(result.rows))
    if result.ratios:
        console.print(ratio_table(result.ratios))
    if profile:
        console.print(profile_table(result.profiles, drafters_run_models=bool(result.llm.plan.ssms)))
    machine, settings = result.machine, result.settings
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    console.print(
        f"{settings['model']} in {settings['dtype']} on {machine['cpu']}, {machine['threads']} threads; target {machine['target']}; "
        f"row invariance {machine['row_invariance']}; {versions}",
        markup=False,
    )
    _warn(warnings_of(result))


def warnings_of(result: "BenchResult") -> list[str]:
    """What a reader of the numbers must know: peers and prompts left out, and models that did not run natively."""
    plan = result.llm.plan
    found = [f"peer {name} was left out: {reason}" for name, reason in result.left_out.items()]
    if result.too_long:
        found.append(f"{len(result.too_long)} prompts were left out, too long for the model: {', '.join(result.too_long)}")
    for compilation in (plan.llm, *plan.ssms):
        lowering = compilation.model.lowering
        if lowering.target != _NATIVE_TARGET:
            found.append(
                f"{compilation.name} ran on {lowering.target}, NOT on {_NATIVE_TARGET}: these speeds are not flexspec's. {lowering.reason}"
            )
    return found


def _warn(warnings: Sequence[str]) -> None:
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for warning in warnings:
        console.print(f"WARNING: {warning}", style="bold red", markup=False)
