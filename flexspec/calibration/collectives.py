"""What ranks send each other, between pieces of a pass, as execution has it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean
from time import perf_counter
from typing import Any

import numpy as np
import torch

from flexspec.calibration.chains import Setting, append_linear
from flexspec.calibration.crew import Crew, measured
from flexspec.codegen.batch import Batch, chain_batch
from flexspec.codegen.cpu.segments import SegmentedProgram
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.runtime.distributed.commands import CacheUpdate, RunPass
from flexspec.runtime.distributed.ranks import Ranks

_PIECES = 12
"""Pieces of a pass, with a collective after each."""
_FEATURES = 1280
"""Of the two linears of a piece: 6.5 MB of weights in bfloat16, as half a layer of a model of a few hundred million parameters has for
each of two ranks. How long ranks work in between counts: they come later or earlier."""
_ELEMENT = 4
_PASS_TOKENS = 16
_LEAST_S = 1e-7


@dataclass(frozen=True, kw_only=True)
class CollectiveSizes:
    """What is measured.

    Attributes:
        num_bytes: of each rank's share, ascending, multiples of 4.
        budget_s: about how long one measurement may take.
        repeats: of a message there and back.
    """

    num_bytes: tuple[int, ...] = (2048, 16384, 65536, 262144, 1048576, 4194304)
    budget_s: float = 0.4
    repeats: int = 40


def measure_collectives(setting: Setting, crew: Crew, group: ParallelGroup, sizes: CollectiveSizes) -> list[dict[str, Any]]:
    """Tables of the collectives of a tensor-parallel group, all ranks running a pass of which they are part."""
    tables = []
    # Means: a few collectives that wait for a core take as long as all others together.
    plain = measured(_pass(setting, None), crew, budget_s=sizes.budget_s, average=mean)
    for kind in ("reduce", "combine", "replicate"):
        seconds = []
        for num_bytes in sizes.num_bytes:
            whole = measured(_pass(setting, _collective(kind, group, num_bytes)), crew, budget_s=sizes.budget_s, average=mean)
            seconds.append(max((whole - plain) / _PIECES, _LEAST_S))
        tables.append({"kind": kind, "ranks": crew.size, "num_bytes": list(sizes.num_bytes), "seconds": undisturbed(seconds)})
    return tables


def measure_messages(setting: Setting, ranks: Ranks, sizes: CollectiveSizes) -> list[dict[str, Any]]:
    """Tables of messages from the first rank to the second, while those beyond wait; the second's are empty."""
    seconds = [_there_and_back(setting, ranks, num_bytes, sizes.repeats) for num_bytes in sizes.num_bytes]
    command = _command(setting, ranks, sizes.repeats)
    if ranks.rank:
        return []
    return [
        {"kind": "send", "ranks": 2, "num_bytes": list(sizes.num_bytes), "seconds": undisturbed(seconds)},
        {"kind": "command", "ranks": 2, "num_bytes": [4096], "seconds": [max(command - seconds[0], _LEAST_S)]},
    ]


def undisturbed(seconds: Sequence[float]) -> list[float]:
    """Seconds by ascending size without those that something else has made longer than a larger size's."""
    return list(accumulate(reversed(seconds), min))[::-1]


def _pass(setting: Setting, collective: Callable[[Batch], None] | None) -> Callable[[], None]:
    program = SegmentedProgram(setting.library, dtype=setting.dtype, num_threads=setting.threads)
    x, y = setting.matrix(_FEATURES), setting.matrix(_FEATURES)
    for _ in range(_PIECES):
        append_linear(program.last, setting, x, y)
        append_linear(program.last, setting, y, x)
        if collective is not None:
            program.cut(collective)
    kv = setting.cache(layers=1, slots=1, kv_heads=1, head_dim=16)
    batch = chain_batch(np.zeros(1, dtype=np.int64))
    return lambda: program.run(batch, kv)


def _collective(kind: str, group: ParallelGroup, num_bytes: int) -> Callable[[Batch], None]:
    mine = torch.ones(1, num_bytes // _ELEMENT)
    if kind == "combine":
        widths = [mine.shape[1]] * group.size
        out = torch.zeros(1, sum(widths))
        return lambda batch: group.combine(mine, widths, out)
    if kind == "replicate":
        return lambda batch: group.replicate(mine)
    zeros = torch.zeros_like(mine)  # a sum of ones would grow without end
    return lambda batch: group.reduce(zeros)


def _there_and_back(setting: Setting, ranks: Ranks, num_bytes: int, repeats: int) -> float:
    """Seconds of a message one way, each rank working before it sends."""
    message = torch.ones(1, num_bytes // _ELEMENT)
    work = _pass(setting, None)
    work()
    seconds = []
    for _ in range(repeats):
        began = perf_counter()
        if ranks.rank == 0:
            work()
            worked = perf_counter() - began
            ranks.send_tensor(1, message)
            theirs = ranks.receive_tensor(1, (1, message.shape[1] + 1))[0, 0]
            seconds.append((perf_counter() - began - worked - float(theirs)) / 2)
        elif ranks.rank == 1:
            received = ranks.receive_tensor(0, message.shape)
            began = perf_counter()
            work()
            answer = torch.cat([torch.zeros(1, 1), received], dim=1)
            answer[0, 0] = perf_counter() - began
            ranks.send_tensor(0, answer)
    return max(mean(seconds), _LEAST_S) if seconds else 0.0


def _command(setting: Setting, ranks: Ranks, repeats: int) -> float:
    """Seconds from the order to run a pass of a usual size until its first result is there, the pass itself taking no time.

    The first rank works before, as it does between two orders.
    """
    update = CacheUpdate(cache=0, num_blocks=1, block_size=_PASS_TOKENS, moves=[])
    command = RunPass(batch=chain_batch(np.zeros(_PASS_TOKENS, dtype=np.int64)), update=update)
    result = torch.zeros(1, 1)
    work = _pass(setting, None)
    seconds = []
    for _ in range(repeats):
        if ranks.rank == 0:
            work()
            began = perf_counter()
            ranks.send(1, command)
            ranks.receive_tensor(1, result.shape)
            seconds.append(perf_counter() - began)
        elif ranks.rank == 1:
            ranks.receive(0)
            ranks.send_tensor(0, result)
    return mean(seconds) if seconds else 0.0
