"""The `flexspec` command: its subcommands, and what users see when something goes wrong."""

import os
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from flexspec.cli.acceptance import acceptance
from flexspec.cli.bench import bench
from flexspec.cli.calibrate import calibrate
from flexspec.cli.check import check
from flexspec.cli.demo import demo
from flexspec.cli.exit_status import GENERATION_FAILED, INTERRUPTED, USAGE
from flexspec.cli.generate import generate
from flexspec.cli.inspect import inspect
from flexspec.cli.launch import is_first_rank, is_rank
from flexspec.cli.search import search
from flexspec.cli.tune import tune
from flexspec.errors import UsageError
from flexspec.runtime.distributed.rank_failure import RankFailure
from flexspec.runtime.distributed.ranks import world_size

# Recent releases of typer keep click to themselves, earlier ones use the click package: this finds either's base class.
_ClickException: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="flexspec",
    help="Compile a language model with its drafters, draft token trees, verify each in one pass: faster, and the same text.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_FOR_RANKS = ("generate", "calibrate")
_PATIENCE_S = 2.0
"""What a rank waits before it ends because of another one, so that whoever started them sees first which one that was."""

for command in (demo, generate, inspect, bench, calibrate, acceptance, check, tune, search):
    app.command()(command)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"flexspec {metadata.version('flexspec')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Options of `flexspec` itself."""


def main(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit status; a user's mistake is one line on stderr and status 2."""
    try:
        if is_rank():
            _check_ranks(arguments)
        status = app(list(arguments) or ["--help"], prog_name="flexspec", standalone_mode=False, obj=tuple(arguments))
    except UsageError as error:
        return _refuse(str(error))
    except RankFailure as error:
        time.sleep(_PATIENCE_S)
        print(f"flexspec: {error}; the job ends", file=sys.stderr)
        status = GENERATION_FAILED
    except _ClickException as error:
        return _refuse(error.format_message())
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    return status if isinstance(status, int) else 0


def run() -> NoReturn:
    """The entry point: run the process's own command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Models emit any character: one that the terminal's encoding lacks is replaced.
            stream.reconfigure(errors="replace")
    sys.exit(main(sys.argv[1:]))


def _check_ranks(arguments: Sequence[str]) -> None:
    """Let only commands run as ranks that know how, and only the first rank be heard."""
    if not is_first_rank():
        sys.stdout = open(os.devnull, "w")
    if world_size() > 1 and (not arguments or arguments[0] not in _FOR_RANKS):
        raise UsageError(f"flexspec {' '.join(arguments[:1])} does not run as several ranks: only {' and '.join(_FOR_RANKS)} do")


def _refuse(message: str) -> int:
    if not is_first_rank():
        # All ranks make the same mistake, and the first one's message is enough: it ends the job.
        time.sleep(_PATIENCE_S)
    print("flexspec:", " ".join(message.split()), file=sys.stderr)
    return USAGE
