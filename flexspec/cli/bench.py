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
    DtypeOption,
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
    from flexspec.bench.result import BenchResult
    from flexspec.bench.saved import SavedRun

_OF_LOADED = ("load", "compare")
"""Options that go together with a saved run in place of a measurement."""


def bench(
    context: typer.Context,
    model: BenchModelArgument = None,
    prompts: BenchPromptsOption = None,
    ssm: SsmOption = None,
    limit: LimitOption = None,
    skip: SkipOption = 0,
    dtype: DtypeOption = None,
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
    from flexspec.bench.comparison import check_comparable
    from flexspec.bench.config import BenchConfig
    from flexspec.bench.measurement import GenerationSettings
    from flexspec.bench.plot import check_plot
    from flexspec.bench.run import run_bench
    from flexspec.bench.saved import load_run

    other = None if compare is None else load_run(compare, "--compare")
    if load is not None:
        _check_alone(context, load, compare)
        assert other is not None
        _show_comparison(load_run(load, "--load"), other)
        return
    if model is None or prompts is None:
        raise UsageError(f"{'MODEL' if model is None else '--prompts'} is missing: give a model and --prompts FILE.jsonl, or --load FILE")
    if other is not None:
        check_comparable(model, temperature, other)
    for file, option in ((save, "--save"), (markdown, "--markdown"), (plot, "--plot"), (statistics, "--statistics")):
        check_writable(file, option)
    config = BenchConfig(
        model=model,
        ssms=chosen_ssms(ssm),
        dtype=dtype,
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
    if plot is not None:
        check_plot(plot, [drafter for system in config.systems() for drafter in system.drafters], config.against)
    texts, others = choose(read_prompts(prompts), limit, skip)
    console = Console(stderr=True)
    with log_lines(log_every):
        results = run_bench(config, texts, lambda what: console.print(what, markup=False), warm_up_texts=others)
    _write(results, save=save, markdown=markdown, plot=plot, with_statistics=statistics is not None)
    _show(results, other, profile=profile)


def _batches(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"batch={text!r} is not allowed: give whole numbers of at least 1, for example 1,4,8") from None


def _check_alone(context: typer.Context, load: Path, compare: Path | None) -> None:
    """Refuse options that a saved run has no use for."""
    if compare is None:
        raise UsageError(f"--load {str(load)!r} is compared with another saved run: give --compare FILE as well")
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    useless = [name for name in given if name not in _OF_LOADED]
    if useless:
        told = "MODEL" if useless[0] == "model" else f"--{useless[0].replace('_', '-')}"
        raise UsageError(f"{told} is not allowed with --load {str(load)!r}, which measures nothing: leave it out")


def _write(results: "list[BenchResult]", *, save: Path | None, markdown: Path | None, plot: Path | None, with_statistics: bool) -> None:
    from flexspec.bench.markdown import to_markdown
    from flexspec.bench.plot import plot_result
    from flexspec.bench.result import results_as_json

    if with_statistics:
        results[0].llm.save_statistics()
    write_json(save, results_as_json(results), "--save")
    if markdown is not None:
        write_text(markdown, to_markdown(results), "--markdown")
    if plot is not None:
        plot_result(results, plot)


def _show(results: "list[BenchResult]", other: "SavedRun | None", *, profile: bool) -> None:
    from flexspec.bench.result import missing_batches, results_as_json
    from flexspec.bench.saved import read_run
    from flexspec.cli.bench_report import show_results

    show_results(results, profile=profile)
    if other is not None:
        _show_comparison(read_run(results_as_json(results), "this run", "--compare"), other)
    if missing_batches(results) or any(result.interrupted for result in results):
        raise typer.Exit(INTERRUPTED)


def _show_comparison(one: "SavedRun", other: "SavedRun") -> None:
    from flexspec.bench.comparison import compare_runs
    from flexspec.cli.bench_report import show_comparison

    show_comparison(compare_runs(one, other))
