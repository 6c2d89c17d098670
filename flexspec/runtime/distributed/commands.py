"""What a driver tells the other ranks of its replica."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.codegen.batch import Batch, Int32


@dataclass(frozen=True, kw_only=True)
class CacheUpdate:
    """What has to be done to a rank's part of a KV cache before a pass.

    Attributes:
        cache: number of the cache; a rank makes its part when it first hears of it.
        num_blocks: its blocks.
        block_size: slots of each.
        moves: (sources, destinations) as `KVStorage.move` takes them, in order.
        dropped: caches that will not be used any more.
    """

    cache: int
    num_blocks: int
    block_size: int
    moves: Sequence[tuple[Int32, Int32]]
    dropped: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class RunPass:
    """Run your part of a pass.

    Attributes:
        batch: the tokens.
        update: of the cache that the pass reads and writes.
    """

    batch: Batch
    update: CacheUpdate


@dataclass(frozen=True)
class Finish:
    """The call of the user that all ranks are in has ended.

    Attributes:
        outcome: what it returns on every rank, or the exception that it raises.
    """

    outcome: Any


Command = RunPass | Finish
