"""`flexspec bench`: plain, speculative and other systems on the same prompts, interleaved."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from flexspec.cli.exit_status import INTERRUPTED
from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.log_lines import log_lines
from flexspec.cli.options import (
    DtypeOption,
    JsonOption,
    LimitOption,
    LogEveryOption,
    ModelArgument,
    PromptsOption,
    SsmOption,
    StatisticsOption,
    TreeOption,
    VerifierOption,
    chosen_ssms,
)
from flexspec.cli.prompts_file import choose, read_prompts

if TYPE_CHECKING:
    from flexspec.bench.result import BenchResult

_NATIVE_TARGET = "cpu-native"


def bench(
    model: ModelArgument,
    prompts: PromptsOption,
    ssm: SsmOption = None,
    limit: LimitOption = None,
    skip: Annotated[
        int, typer.Option(metavar="N", help="Leave out the first N prompts, taken in turn from each category, before --limit counts.")
    ] = 0,
    dtype: DtypeOption = None,
    tree: TreeOption = None,
    also_tree: Annotated[
        list[str] | None,
        typer.Option(metavar="TREE", show_default=False, help="Measure this tree of the same drafters as well; repeatable."),
    ] = None,
    verifier: VerifierOption = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens at most; an end-of-sequence token ends a text earlier.")] = 128,
    temperature: Annotated[float, typer.Option(metavar="T", help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens that make up P; 1 keeps all.")] = 1.0,
    batch: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Prompts at a time; speed then counts from when all of them have a token until the last has ended; not with --against.",
        ),
    ] = 1,
    repeat: Annotated[int, typer.Option(metavar="N", help="Measure each prompt N times, in alternating order; medians count.")] = 1,
    warm_up: Annotated[int, typer.Option(metavar="N", help="Prompts, or groups of --batch, that every system runs before.")] = 1,
    against: Annotated[
        str, typer.Option(metavar="NAMES", show_default=False, help="Peers, separated by commas: hf, hf-lookup, llama.cpp.")
    ] = "",
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time of a decode step goes.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="Draw acceptance by depth to this .png or .svg file.")
    ] = None,
    statistics: StatisticsOption = None,
    log_every: LogEveryOption = None,
    json_file: JsonOption = None,
) -> None:
    """Measure decoding speed: flexspec plain and speculative, and its peers, on the same token ids in the same dtype.

    Ctrl-C ends it early, with the results until then.
    """
    from flexspec.bench.config import BenchConfig
    from flexspec.bench.drafters_again import given_drafters
    from flexspec.bench.measurement import GenerationSettings
    from flexspec.bench.plot import check_plot, plot_acceptance
    from flexspec.bench.run import run_bench

    check_writable(json_file)
    check_writable(statistics, "--statistics")
    check_writable(plot, "--plot")
    if plot is not None:
        check_plot(plot, given_drafters(model, chosen_ssms(ssm)))
    texts, others = choose(read_prompts(prompts), limit, skip)
    config = BenchConfig(
        model=model,
        ssms=chosen_ssms(ssm),
        dtype=dtype,
        tree=tree,
        also_trees=also_tree or (),
        verifier=verifier,
        settings=GenerationSettings(max_tokens=max_tokens, temperature=temperature, top_p=top_p),
        against=list(dict.fromkeys(name.strip() for name in against.split(",") if name.strip())),
        batch=batch,
        repeat=repeat,
        warm_up=warm_up,
        statistics=statistics,
        log_every_s=log_every,
    )
    with log_lines(log_every):
        result = run_bench(config, texts, Console(stderr=True).print, warm_up_texts=others)
    if statistics is not None:
        result.llm.save_statistics()
    write_json(json_file, result.to_json())
    if plot is not None:
        plot_acceptance(result.drafts, plot)
    _show(result, profile=profile)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _show(result: "BenchResult", *, profile: bool) -> None:
    from flexspec.bench.tables import category_table, profile_table, ratio_table, speed_table, tree_labels

    console = Console(highlight=False)
    labels = tree_labels(result.rows)
    console.print(speed_table(result.rows, labels))
    if result.ratios:
        console.print(ratio_table(result.ratios, labels))
    if result.ratios_by_category:
        console.print(category_table(result.ratios_by_category, labels))
    if profile:
        console.print(profile_table(result.profiles, labels, drafters_run_models=bool(result.llm.plan.ssms)))
    machine, settings = result.machine, result.settings
    threads = "thread" if machine["threads"] == 1 else "threads"
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    console.print(
        f"{settings['model']} in {settings['dtype']} on {machine['cpu']}, {machine['threads']} {threads}; target {machine['target']}; "
        f"row invariance {machine['row_invariance']}; {versions}",
        markup=False,
    )
    for note in notes_of(result):
        console.print(note, markup=False)
    _warn(warnings_of(result))


def notes_of(result: "BenchResult") -> list[str]:
    """How to read the numbers."""
    settings, found = result.settings, []
    if any(isinstance(row.tree, dict) for row in result.rows):
        found.append(
            "Adaptive trees go on learning, as they do in use: their statistics begin empty before the warm-up, or with those that were "
            "loaded, and follow the text to the last prompt."
        )
    if settings["batch"] > 1:
        found.append(
            f"{settings['batch']} prompts at a time: the clock runs from when all of them have their first token until the last has ended; "
            "tokens made in that time, by all, count."
        )
    if settings["repeat"] > 1:
        middle = ", the slower one of the two in the middle" if settings["repeat"] % 2 == 0 else ""
        found.append(f"Of the {settings['repeat']} runs of each prompt the one of median speed counts{middle}.")
    return found


def warnings_of(result: "BenchResult") -> list[str]:
    """What a reader of the numbers must know: peers and prompts left out, and models that did not run natively."""
    plan = result.llm.plan
    found = [f"peer {name} was left out: {reason}" for name, reason in result.left_out.items()]
    if result.interrupted:
        found.append(
            f"interrupted: these are the results of the first {sum(len(sample.group.prompts) for sample in result.samples)} prompts"
        )
    if result.too_long:
        found.append(f"{len(result.too_long)} prompts were left out, too long for the model: {', '.join(result.too_long)}")
    if result.too_few:
        found.append(f"{len(result.too_few)} prompts were left out, too few for another group: {', '.join(result.too_few)}")
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
