"""The `flexspec` command: its subcommands, and what users see when something goes wrong."""

import errno
import os
import sys
import time
import warnings
from collections.abc import Sequence
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated, Any, NoReturn

import typer

from flexspec.cli.acceptance import acceptance
from flexspec.cli.bench import bench
from flexspec.cli.calibrate import calibrate
from flexspec.cli.check import check
from flexspec.cli.command_line_mistake import command_line_mistake
from flexspec.cli.demo import demo
from flexspec.cli.exit_status import BROKEN_PIPE, GENERATION_FAILED, INTERRUPTED, USAGE
from flexspec.cli.generate import generate
from flexspec.cli.inspect import inspect
from flexspec.cli.launch import is_first_rank, is_rank
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
_FOR_RANKS = ("generate", "calibrate")
_LOST_OUTPUT = {errno.EPIPE: BROKEN_PIPE, errno.ENOSPC: USAGE}
"""What is raised where stdout takes no more, and the status to end with."""
_PATIENCE_S = 2.0
"""What a rank waits before it ends because of another one, so that whoever started them sees first which one that was."""

_COMMANDS = {command.__name__: command for command in (demo, generate, inspect, bench, calibrate, acceptance, check, tune, search)}
for command in _COMMANDS.values():
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
    except _ClickException as error:
        return _refuse(command_line_mistake(error, arguments, _COMMANDS))
    except (KeyboardInterrupt, typer.Abort):
        status = INTERRUPTED
    except _rank_failure() as error:
        time.sleep(_PATIENCE_S)
        print(f"flexspec: {error}; the job ends", file=sys.stderr)
        status = GENERATION_FAILED
    return status if isinstance(status, int) else 0


def run() -> NoReturn:
    """The entry point: run the process's own command line and exit."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Models emit any character: one that the terminal's encoding lacks is replaced.
            stream.reconfigure(errors="replace")
    warnings.formatwarning = _warning_line
    try:
        status = main(sys.argv[1:])
        if sys.stdout is not None:  # a process may be started without one
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in _LOST_OUTPUT:
            raise
        _drop_output()
        status = _LOST_OUTPUT[error.errno]
        if status != BROKEN_PIPE:
            print(f"flexspec: {error.strerror}: make room, or send the output elsewhere", file=sys.stderr)
    sys.exit(status)


def _warning_line(message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None) -> str:
    """A warning as users read it: the line of code that gave it says nothing to them."""
    return f"flexspec: warning: {' '.join(str(message).split())}\n"


def _drop_output() -> None:
    """Send what is still to be written at the end nowhere, where it raises nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _rank_failure() -> type[Exception]:
    """What ends a job because of another rank; imported when something was raised, for it takes torch along."""
    from flexspec.runtime.distributed.rank_failure import RankFailure

    return RankFailure


def _check_ranks(arguments: Sequence[str]) -> None:
    """Let only commands run as ranks that know how, and only the first rank be heard."""
    if not is_first_rank():
        sys.stdout = open(os.devnull, "w")
    from flexspec.runtime.distributed.ranks import world_size

    if world_size() > 1 and (not arguments or arguments[0] not in _FOR_RANKS):
        raise UsageError(f"flexspec {' '.join(arguments[:1])} does not run as several ranks: only {' and '.join(_FOR_RANKS)} do")


def _refuse(message: str) -> int:
    if not is_first_rank():
        # All ranks make the same mistake, and the first one's message is enough: it ends the job.
        time.sleep(_PATIENCE_S)
    print("flexspec:", " ".join(message.split()), file=sys.stderr)
    return USAGE
