"""Starting the ranks of a job on this machine: the command line that was given, once for each."""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from flexspec.cli.exit_status import GENERATION_FAILED, INTERRUPTED
from flexspec.errors import UsageError
from flexspec.strategy import load_strategy

_SHUTDOWN_S = "5"
_ALWAYS_ALLOWED = 8
"""Ranks that may be started whatever the machine."""


def is_rank() -> bool:
    """Whether this process was started as a rank, by `launch` or `torchrun`."""
    return "RANK" in os.environ


def is_first_rank() -> bool:
    """Whether this process is alone, or the rank that prints and writes what all of them know."""
    return os.environ.get("RANK", "0") == "0"


def ranks_to_start(strategy: str) -> int:
    """How many ranks a strategy needs that are still to be started; 1 if this process is all, or is one of them.

    Raises:
        UsageError: if the strategy's file can't be read.
    """
    return 1 if is_rank() or strategy == "auto" else load_strategy(strategy).parallel.world_size


def launch(arguments: Sequence[str], num_ranks: int) -> int:
    """Run `flexspec` with `arguments` as so many ranks, by torch's elastic launcher, and wait for them; none is left running.

    Returns:
        The exit status: 0 if all went well, else that of the rank that failed first, or 1 if a signal ended it; 130 on Ctrl-C.

    Raises:
        UsageError: if it is too many for one machine.
    """
    cores = len(os.sched_getaffinity(0))
    if num_ranks > max(cores, _ALWAYS_ALLOWED):
        raise UsageError(
            f"the strategy is for {num_ranks} ranks, too many for the {cores} cores of this machine: give a strategy for at most "
            f"{max(cores, _ALWAYS_ALLOWED)}, or start the ranks on several machines by torchrun"
        )
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Some of the loggers below this one have levels of their own.
    launcher = logging.getLogger("torch.distributed.elastic")
    launcher.propagate = False
    launcher.addHandler(logging.NullHandler())
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = _SHUTDOWN_S
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else its warnings come with what a rank says of one that is gone
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "flexspec", *arguments)
    except SignalException as error:
        return INTERRUPTED if error.sigval == signal.SIGINT else GENERATION_FAILED
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode > 0:
            return int(failure.exitcode)  # it has said why
        name = signal.Signals(-failure.exitcode).name
        why = "; the system does that when memory runs out" if name == "SIGKILL" else ""
        print(f"flexspec: rank {rank} was ended by signal {name}{why}; the job ends", file=sys.stderr)
        return GENERATION_FAILED
    return 0
