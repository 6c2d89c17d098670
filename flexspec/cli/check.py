"""`flexspec check`: is speculation lossless here?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from flexspec.bench.prompt_text import PromptText
from flexspec.checking.prompts import BUILT_IN
from flexspec.cli.exit_status import CHECK_FAILED
from flexspec.cli.options import DtypeOption, LimitOption, ModelArgument, SsmOption, TreeOption, chosen_ssms
from flexspec.cli.prompts_file import read_prompts, stratified
from flexspec.errors import UsageError

if TYPE_CHECKING:
    from flexspec.checking.run import CheckResult


def check(
    model: ModelArgument,
    ssm: SsmOption = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", show_default=False, help="Prompts to check with; a few are built in.")
    ] = None,
    limit: LimitOption = None,
    dtype: DtypeOption = None,
    tree: TreeOption = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens of each text that is compared.")] = 64,
    samples: Annotated[int, typer.Option(metavar="N", help="Texts drawn for each chi-square test.")] = 256,
) -> None:
    """Check that speculation changes nothing: greedy and seeded text token for token, multi-step speculative sampling by its distribution.

    The exit status is 0 if it is lossless and 1 if it is not.
    """
    from flexspec.checking.run import CheckConfig, run_check

    texts = _texts(prompts, limit)
    config = CheckConfig(model=model, ssms=chosen_ssms(ssm), dtype=dtype, tree=tree, max_tokens=max_tokens, samples=samples)
    result = run_check(config, texts, Console(stderr=True).print)
    _show(result)
    if not result.lossless:
        raise typer.Exit(CHECK_FAILED)


def _texts(path: Path | None, limit: int | None) -> list[PromptText]:
    if path is not None:
        return stratified(read_prompts(path), limit)
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} is not allowed: give a number of prompts of at least 1")
    return list(BUILT_IN[:limit])


def _show(result: "CheckResult") -> None:
    console = Console(highlight=False)
    table = Table(title="Is speculation lossless here?")
    for name in ("test", "prompt", "lossless"):
        table.add_column(name, no_wrap=True)
    for name in ("drafted", "accepted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what was seen")
    before = ""
    for row in result.rows:
        if row.test != before:
            table.add_section()
        verdict = "[green]yes[/]" if row.lossless else "[bold red]NO[/]"
        table.add_row(row.test, row.prompt, verdict, str(row.drafted), str(row.accepted), row.detail)
        before = row.test
    console.print(table)
    plan = result.llm.plan
    console.print(
        f"drafters {', '.join(plan.strategy.drafters)}; {plan.strategy.dtype}; target {plan.llm.model.lowering.target}", markup=False
    )
    console.print(f"row invariance {plan.llm.row_invariance}", markup=False)
    for test in dict.fromkeys(row.test for row in result.rows):
        if not any(row.drafted for row in result.rows if row.test == test):
            console.print(f"nothing was drafted in the {test} tests, so they say little: give other prompts or drafters", style="yellow")
    console.print("lossless" if result.lossless else "NOT lossless", style="bold green" if result.lossless else "bold red")
