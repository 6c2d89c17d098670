"""`flexspec search`: how a model and its drafters are best run on given hardware."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.options import DtypeOption, JsonOption, KvCacheDtypeOption, SsmOption, chosen_ssms
from flexspec.errors import UsageError

_OF_FILES = ("explain", "diff", "plot")
"""Options that need no search."""


def search(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help="smollm2-135m, a folder or name (its configuration is enough), or a GGUF or ONNX file.",
        ),
    ] = None,
    ssm: SsmOption = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            metavar="PRESET|FILE",
            show_default=False,
            help="What to run on: a10gx4, a10gx4-2nodes, a100-80gx8, h100x8, h100x8-8nodes, h200x1, h200x8, local (this machine, once "
            "`flexspec calibrate` has measured it), or a JSON file.",
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option(metavar="latency|throughput", help="The least time per token, or the most tokens a second of all requests.")
    ] = "latency",
    batch: Annotated[int, typer.Option(metavar="N", help="Requests at once; for throughput the most, and fewer are tried.")] = 1,
    prompt: Annotated[int, typer.Option("--context", metavar="N", help="Tokens of a prompt.")] = 512,
    new_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens of an answer.")] = 128,
    max_latency: Annotated[
        float | None, typer.Option(metavar="MS", show_default=False, help="Most milliseconds per token of a request.")
    ] = None,
    acceptance: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="What is known of the drafters' acceptance, as --statistics of generate and bench writes it. Without it, what is "
            "assumed of drafters nobody has seen.",
        ),
    ] = None,
    dtype: DtypeOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    max_tree: Annotated[int, typer.Option(metavar="N", help="Most drafted tokens of a tree.")] = 64,
    top: Annotated[int, typer.Option(metavar="K", help="Show the best K strategies.")] = 2,
    export_strategy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write the choice for --strategy of generate, with its cost breakdown."),
    ] = None,
    json_file: JsonOption = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", show_default=False, help="Draw the Pareto front, as .png or .svg.")] = None,
    explain: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Say why the strategy of an exported or a JSON file was chosen; no search."),
    ] = None,
    diff: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="A B", show_default=False, help="Compare the strategies of two such files; no search."),
    ] = None,
) -> None:
    """Choose how a model runs on given hardware: replicas, pipeline stages, tensor parallelism, drafters and their places, tree size.

    All figures are predicted. The model needs no weights: a folder with its config.json is enough.
    """
    from flexspec.passes.search.plot import check_plot

    for file, option in ((json_file, "--json"), (export_strategy, "--export-strategy"), (plot, "--plot")):
        check_writable(file, option)
    if plot is not None:
        check_plot(plot)
    if explain is not None or diff is not None:
        _check_alone(context)
        _show_files(explain, diff, plot)
        return
    if model is None:
        raise UsageError("MODEL is missing: give a model, or --explain FILE, or --diff A B")
    if hardware is None:
        from flexspec.passes.search.hardware import PRESETS

        raise UsageError(f"--hardware is missing: give a JSON file, or one of {', '.join(PRESETS)}")
    from flexspec.api.search import search as run_search
    from flexspec.passes.search.explain import explain as explained
    from flexspec.passes.search.plot import plot_front

    result = run_search(
        model,
        chosen_ssms(ssm),
        hardware,
        objective=objective,
        batch=batch,
        context=prompt,
        new_tokens=new_tokens,
        max_latency_ms=max_latency,
        acceptance=acceptance,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        max_tree=max_tree,
        top=top,
    )
    report = result.report()
    try:
        write_json(json_file, result.to_json())
        if export_strategy is not None:
            result.strategy.save(export_strategy, report)
        if plot is not None:
            plot_front(report, plot)
    finally:  # a file that can't be written keeps nothing from the terminal
        Console(highlight=False).print(explained(report, top=top))


def _check_alone(context: typer.Context) -> None:
    """Refuse options that files have no use for."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    useless = [name for name in given if name not in _OF_FILES]
    if useless:
        told = {"model": "MODEL", "prompt": "--context", "json_file": "--json"}.get(useless[0], f"--{useless[0].replace('_', '-')}")
        raise UsageError(f"{told} is not allowed with --explain or --diff, which search nothing: leave it out")


def _show_files(explain: Path | None, diff: tuple[Path, Path] | None, plot: Path | None) -> None:
    from flexspec.passes.search import explain as explaining
    from flexspec.passes.search.plot import plot_front
    from flexspec.passes.search.report_file import read_report

    console = Console(highlight=False)
    if explain is not None:
        report = read_report(explain)
        if plot is not None:
            plot_front(report, plot)
        console.print(explaining.explain(report, top=max(2, len(report.get("ranking", [])))))
    if diff is not None:
        first, second = diff
        console.print(explaining.diff(str(first), read_report(first), str(second), read_report(second)))
