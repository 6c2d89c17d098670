"""`flexspec tune`: draft models for a language model, from texts that it writes itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flexspec.cli.options import ModelArgument
from flexspec.cli.prompts_file import read_prompts
from flexspec.errors import UsageError

if TYPE_CHECKING:
    from flexspec.tuning.report import TuneReport


def tune(
    model: ModelArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the draft models, the report, and what a killed run goes on from.")],
    kind: Annotated[
        str, typer.Option(metavar="KIND", help="head: one layer that reads the model's hidden states; ssm: a small transformer of its own.")
    ] = "head",
    layers: Annotated[int | None, typer.Option(metavar="K", show_default=False, help="Layers of an SSM, 2 by default.")] = None,
    vocab_trim: Annotated[
        int | None, typer.Option(metavar="V", show_default=False, help="Draft only the V commonest tokens; all by default.")
    ] = None,
    pool: Annotated[int, typer.Option(metavar="M", help="Draft models, each trained on what those before it miss.")] = 1,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", show_default=False, help="JSONL file of prompts; without one the model asks itself.")
    ] = None,
    self_made: Annotated[
        int | None, typer.Option(metavar="N", show_default=False, help="Most conversations that the model has with itself.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", help="Tokens of all answers together: no round of 256 conversations begins after that.")
    ] = 1_500_000,
    passes: Annotated[int, typer.Option(metavar="N", help="Passes over the texts in training.")] = 4,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", show_default=False, help="Most minutes of training of each draft model.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="The same seed makes the same draft models, --minutes aside.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
) -> None:
    """Tune draft models to MODEL: it answers prompts, and small models learn to guess its answers.

    Each draft model is a folder in --out that `--ssm` takes. On two CPU cores 1.5 million tokens of a 135M model take hours: give fewer
    tokens, passes or minutes for a first try.
    """
    from flexspec.tuning.config import DraftModelSettings, TrainingSettings, TuneConfig
    from flexspec.tuning.tune import tune as run

    if data is not None and self_made is not None:
        raise UsageError("--data and --self-made can't both hold: give --data or --self-made, not both")
    config = TuneConfig(
        model=model,
        draft_model=DraftModelSettings(kind=kind, layers=layers, vocab_trim=vocab_trim),  # type: ignore[arg-type]  # checked there
        training=TrainingSettings(passes=passes, minutes=minutes, seed=seed),
        pool=pool,
        data=None if data is None else str(data),
        num_prompts=self_made,
        num_tokens=tokens,
    )
    prompts = None if data is None else read_prompts(data)
    console = Console(stderr=True)
    try:
        report = run(config, out, prompts=prompts, resume=resume, console=console)
    except KeyboardInterrupt:
        console.print("stopped; the same command with --resume goes on", markup=False)
        raise
    _show(report, out)


def _show(report: "TuneReport", out: Path) -> None:
    console = Console(highlight=False)
    size, share = report.draft_vocabulary
    console.print(
        f"{report.texts} texts, {report.answer_tokens} tokens of answers; {report.held_out} texts held out; "
        f"drafts {size} tokens, which make up {share:.1%} of the held-out answers",
        markup=False,
        soft_wrap=True,
    )
    table = Table(title="Held-out tokens among the first k of a draft model, in percent")
    for name in ("draft model", "drafted before"):
        table.add_column(name)
    ranks = (1, 2, 3, 4)
    for k in ranks:
        table.add_column(f"k={k}", justify="right")
    table.add_column("n", justify="right")
    for member in report.members:
        table.add_section()
        rates = member.trained.rates
        for depth, (row, count) in enumerate(zip(rates.by_depth, rates.counts, strict=True)):
            name = member.folder if depth == 0 else ""
            table.add_row(name, str(depth), *(f"{100 * row[k - 1]:.1f}" for k in ranks), str(count))
    if len(report.members) > 1:
        table.add_section()
        for count, row in enumerate(report.coverage, start=1):
            table.add_row(f"the first {count} together", "0", *(f"{100 * row[k - 1]:.1f}" for k in ranks), "")
    console.print(table)
    for member in report.members:
        console.print(f"--ssm {out / member.folder}", markup=False, soft_wrap=True)
