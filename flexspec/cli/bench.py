"""`flexspec bench`: plain, speculative and other systems on the same prompts, interleaved."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from flexspec.cli.bench_options import (
    AgainstOption,
    AlsoOption,
    BatchOption,
    BenchModelArgument,
    BenchPromptsOption,
    CompareOption,
    LoadOption,
    MarkdownOption,
    MaxTokensOption,
    PlotOption,
    ProfileOption,
    RepeatOption,
    SaveOption,
    SkipOption,
    SyntheticOption,
    TemperatureOption,
    TopPOption,
    WarmUpOption,
)
from flexspec.cli.exit_status import INTERRUPTED
from flexspec.cli.json_file import check_writable, write_json, write_text
from flexspec.cli.log_lines import log_lines
from flexspec.cli.options import (
    DeviceOption,
    DtypeOption,
    KvCacheDtypeOption,
    LimitOption,
    LogEveryOption,
    SsmOption,
    StatisticsOption,
    TreeOption,
    VerifierOption,
    chosen_ssms,
)
from flexspec.cli.prompts_file import choose, read_prompts
from flexspec.errors import UsageError

if TYPE_CHECKING:
    from flexspec.bench.comparison import NamedRun
    from flexspec.bench.config import BenchConfig
    from flexspec.bench.prompt_text import PromptText
    from flexspec.bench.run import BenchRun

_OF_LOADED = ("load", "compare", "profile", "markdown", "plot")
"""Options that go together with a saved run in place of a measurement."""


def bench(
    context: typer.Context,
    model: BenchModelArgument = None,
    prompts: BenchPromptsOption = None,
    ssm: SsmOption = None,
    limit: LimitOption = None,
    skip: SkipOption = 0,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    tree: TreeOption = None,
    also: AlsoOption = None,
    synthetic_acceptance: SyntheticOption = None,
    verifier: VerifierOption = None,
    max_tokens: MaxTokensOption = 128,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    batch: BatchOption = "1",
    repeat: RepeatOption = 1,
    warm_up: WarmUpOption = 1,
    against: AgainstOption = "",
    profile: ProfileOption = False,
    plot: PlotOption = None,
    markdown: MarkdownOption = None,
    save: SaveOption = None,
    compare: CompareOption = None,
    load: LoadOption = None,
    statistics: StatisticsOption = None,
    log_every: LogEveryOption = None,
) -> None:
    """Measure decoding speed: flexspec plain and speculative, and its peers, on the same token ids in the same dtype.

    Ctrl-C ends it early, with the results until then.
    """
    from flexspec.bench.comparison import NamedRun, check_comparable
    from flexspec.bench.config import BenchConfig
    from flexspec.bench.measurement import GenerationSettings
    from flexspec.bench.saved import load_results

    for file, option in ((save, "--save"), (markdown, "--markdown"), (plot, "--plot"), (statistics, "--statistics")):
        check_writable(file, option)
    other = None if compare is None else NamedRun(name=str(compare), results=load_results(compare, "--compare"))
    if load is not None:
        _check_alone(context, load)
        _report_loaded(load, other, profile=profile, markdown=markdown, plot=plot)
        return
    if model is None or prompts is None:
        raise UsageError(f"{'MODEL' if model is None else '--prompts'} is missing: give a model and --prompts FILE.jsonl, or --load FILE")
    if other is not None:
        check_comparable(model, temperature, other)
    config = BenchConfig(
        model=model,
        ssms=chosen_ssms(ssm),
        dtype=dtype,
        device=device,
        kv_cache_dtype=kv_cache_dtype,
        tree=tree,
        also=also or (),
        verifier=verifier,
        settings=GenerationSettings(max_tokens=max_tokens, temperature=temperature, top_p=top_p),
        against=list(dict.fromkeys(name.strip() for name in against.split(",") if name.strip())),
        batches=_batches(batch),
        repeat=repeat,
        warm_up=warm_up,
        synthetic_acceptance=synthetic_acceptance,
        statistics=statistics,
        log_every_s=log_every,
    )
    run = _measure(config, choose(read_prompts(prompts), limit, skip), plot)
    try:
        _save(run, save)
    finally:  # a file that can't be written keeps nothing from the terminal
        _report(NamedRun(name="this run", results=run.results), other, profile=profile, markdown=markdown, plot=plot)
    if run.is_interrupted:
        raise typer.Exit(INTERRUPTED)


def _measure(config: "BenchConfig", texts: "tuple[list[PromptText], list[PromptText]]", plot: Path | None) -> "BenchRun":
    """Measure the first of the texts, and warm up with the others."""
    from flexspec.bench.plot import check_plot
    from flexspec.bench.run import run_bench

    if plot is not None:
        check_plot(plot, [*(system.name for system in config.systems()), *config.against])
    measured, others = texts
    console = Console(stderr=True)
    with log_lines(config.log_every_s):
        return run_bench(config, measured, lambda what: console.print(what, markup=False), warm_up_texts=others)


def _save(run: "BenchRun", save: Path | None) -> None:
    """Write the results, and what the main system's drafters learned if that was asked for."""
    from flexspec.bench.result_json import results_to_json

    write_json(save, results_to_json(run.results), "--save")
    if run.config.statistics is not None:
        run.llm.save_statistics()


def _batches(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"batch={text!r} is not allowed: give whole numbers of at least 1, for example 1,4,8") from None


def _check_alone(context: typer.Context, load: Path) -> None:
    """Refuse options that a saved run has no use for."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    useless = [name for name in given if name not in _OF_LOADED]
    if useless:
        told = "MODEL" if useless[0] == "model" else f"--{useless[0].replace('_', '-')}"
        raise UsageError(f"{told} is not allowed with --load {str(load)!r}, which measures nothing: leave it out")


def _report_loaded(load: Path, other: "NamedRun | None", *, profile: bool, markdown: Path | None, plot: Path | None) -> None:
    from flexspec.bench.comparison import NamedRun
    from flexspec.bench.plot import check_plot
    from flexspec.bench.report import PLAIN
    from flexspec.bench.saved import load_results

    run = NamedRun(name=str(load), results=load_results(load, "--load"))
    if plot is not None:
        check_plot(plot, [system for system in run.first.systems if system != PLAIN])
    _report(run, other, profile=profile, markdown=markdown, plot=plot)


def _report(run: "NamedRun", other: "NamedRun | None", *, profile: bool, markdown: Path | None, plot: Path | None) -> None:
    """Show a benchmark in all ways that were asked for."""
    from flexspec.bench.comparison import compare_runs
    from flexspec.bench.markdown import to_markdown
    from flexspec.bench.plot import plot_result
    from flexspec.cli.bench_report import show_comparison, show_results

    try:
        if markdown is not None:
            write_text(markdown, to_markdown(run.results), "--markdown")
        if plot is not None:
            plot_result(run.results, plot)
    finally:
        show_results(run.results, profile=profile)
        if other is not None:
            show_comparison(compare_runs(run, other))
