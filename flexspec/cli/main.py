"""The `flexspec` command: its subcommands, and what users see when something goes wrong."""

import sys
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
from flexspec.cli.exit_status import INTERRUPTED, USAGE
from flexspec.cli.generate import generate
from flexspec.cli.inspect import inspect
from flexspec.cli.search import search
from flexspec.cli.tune import tune
from flexspec.errors import UsageError

# Recent releases of typer keep click to themselves, earlier ones use the click package: this finds either's base class.
_ClickException: Any = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException")

app = typer.Typer(
    name="flexspec",
    help="Compile a language model with its drafters, draft token trees, verify each in one pass: faster, and the same text.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
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
        status = app(list(arguments) or ["--help"], prog_name="flexspec", standalone_mode=False)
    except UsageError as error:
        return _refuse(str(error))
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


def _refuse(message: str) -> int:
    print("flexspec:", " ".join(message.split()), file=sys.stderr)
    return USAGE
