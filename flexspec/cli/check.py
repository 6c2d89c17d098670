"""`flexspec check`: is speculation lossless here?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from flexspec.bench.prompt_text import PromptText
from flexspec.checking.prompts import BUILT_IN
from flexspec.cli.exit_status import CHECK_FAILED
from flexspec.cli.options import (
    DeviceOption,
    DtypeOption,
    KvCacheDtypeOption,
    LimitOption,
    ModelArgument,
    ReferenceKernelsOption,
    SsmOption,
    TreeOption,
    chosen_ssms,
)
from flexspec.cli.prompts_file import read_prompts, stratified
from flexspec.errors import UsageError
from flexspec.tree_shape import Tree, TreeLimits

if TYPE_CHECKING:
    from flexspec.checking.row import CheckRow
    from flexspec.checking.run import CheckResult

_ALL = "all"
_FEW = 0.01
"""Share of the drafts; a test in which fewer are accepted says little about acceptance."""


def check(
    model: ModelArgument,
    ssm: SsmOption = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", show_default=False, help="Prompts to check with; a few are built in.")
    ] = None,
    limit: LimitOption = None,
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    kv_cache_dtype: KvCacheDtypeOption = "auto",
    allow_reference_kernels: ReferenceKernelsOption = False,
    tree: TreeOption = None,
    max_tokens: Annotated[int, typer.Option(metavar="N", help="New tokens of each text that is compared.")] = 64,
    verifier: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", show_default=False, help="A verifier to check; repeatable. Without it, or with all: every one."),
    ] = None,
    samples: Annotated[int, typer.Option(metavar="N", help="Texts drawn for each chi-square test.")] = 256,
) -> None:
    """Check that speculation changes nothing: greedy and seeded text token for token, the other verifiers by their distribution.

    Greedy and coupled verification are checked with static and with adaptive trees, the others with static ones: one of the trees
    is --tree, the other is chosen.

    The exit status is 0 if it is lossless and 1 if it is not.
    """
    from flexspec.checking.config import CheckConfig
    from flexspec.checking.run import run_check

    texts = _texts(prompts, limit)
    config = CheckConfig(
        model=model,
        ssms=chosen_ssms(ssm),
        dtype=dtype,
        device=device,
        kv_cache_dtype=kv_cache_dtype,
        allow_reference_kernels=allow_reference_kernels,
        tree=tree,
        verifiers=None if not verifier or _ALL in verifier else verifier,
        max_tokens=max_tokens,
        samples=samples,
    )
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
    console.print("Is speculation lossless here?")
    for (verifier, tree), rows in _tests(result).items():
        console.print(_table(f"{verifier}, {_kind(tree)} trees", rows))
    plan = result.llm.plan
    for tree in dict.fromkeys(row.tree for row in result.rows):
        console.print(f"{_kind(tree)} trees: {tree}", markup=False)
    console.print(
        f"drafters {', '.join(plan.strategy.drafters)}; {plan.strategy.dtype}; target {plan.llm.model.lowering.target}", markup=False
    )
    console.print(f"row invariance {plan.llm.row_invariance}", markup=False)
    for (verifier, tree), rows in _tests(result).items():
        how = "token for token against plain decoding" if rows[0].p_value is None else "the distribution, by chi-square tests"
        console.print(f"checked: {verifier}, {_kind(tree)} trees, {len(rows)} prompts, {how}", markup=False)
        doubt = doubt_of(rows)
        if doubt is not None:
            more = "" if rows[0].p_value is None else ", or more --samples"
            console.print(f"{doubt}: give other prompts or drafters{more}", style="yellow", markup=False)
    console.print("lossless" if result.lossless else "NOT lossless", style="bold green" if result.lossless else "bold red")


def _table(title: str, rows: Sequence["CheckRow"]) -> Table:
    """One test, no wider than 80 columns need."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("prompt", overflow="fold", max_width=16)
    table.add_column("lossless", no_wrap=True)
    for name in ("drafted", "accepted"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("what was seen", min_width=24)
    for row in rows:
        verdict = "[green]yes[/]" if row.lossless else "[bold red]NO[/]"
        table.add_row(escape(row.prompt), verdict, str(row.drafted), str(row.accepted), escape(row.detail))
    return table


def doubt_of(rows: Sequence["CheckRow"]) -> str | None:
    """Why the rows of one test say little, or None if they do not: next to nothing was drafted, accepted, or told apart."""
    drafted, accepted = sum(row.drafted for row in rows), sum(row.accepted for row in rows)
    if not drafted:
        return "nothing was drafted in these tests, so they say little"
    if accepted < _FEW * drafted:
        return f"{accepted} of {drafted} drafts were accepted in these tests, so they say little about acceptance"
    if all(row.p_value == 1 for row in rows):
        return "all texts fell into one cell in these tests, so they say little about the distribution"
    return None


def _tests(result: "CheckResult") -> dict[tuple[str, Tree], list["CheckRow"]]:
    """Rows by verifier and tree."""
    tests: dict[tuple[str, Tree], list[CheckRow]] = {}
    for row in result.rows:
        tests.setdefault((row.test, row.tree), []).append(row)
    return tests


def _kind(tree: Tree) -> str:
    return "adaptive" if isinstance(tree, TreeLimits) else "static"
