"""The ranks of a job as one of them sees the others: objects and tensors to and from a named rank, within a time limit."""

import os
import pickle
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from flexspec.codegen.cpu.native import NativeLibrary, NativeUnavailable, load_library
from flexspec.codegen.cpu.shared_group import SharedGroup, shared_group_bytes
from flexspec.codegen.parallel_group import ParallelGroup, TorchGroup
from flexspec.errors import UsageError
from flexspec.runtime.distributed.mailboxes import MOST_RANKS, Mailboxes, mailbox_bytes
from flexspec.runtime.distributed.rank_failure import RankFailure, transport_told
from flexspec.runtime.distributed.shared_memory import SharedMemory, machine_name, share_memory

_INLINE = 4096
"""Bytes of an object's first message; most commands fit in it."""
_LENGTH = 8
_OBJECTS, _TENSORS = 1, 2  # tags
_POLL_S = 0.02
_NO_LIMIT = timedelta(days=7)
"""For waits that may last: whether the others live is the heartbeat's matter."""


class Ranks:
    """This process among the ranks of a job.

    Args:
        timeout_s: seconds after which a rank that owes an answer is given up.

    Attributes:
        rank: this one.
        size: how many there are.
        store: what all of them can read and write.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        store, self.rank, self.size = next(iter(rendezvous("env://", timeout=timedelta(seconds=max(timeout_s, 60)))))
        self.store: Any = store
        self._wait_for_all()
        dist.init_process_group("gloo", store=PrefixStore("ranks", store), rank=self.rank, world_size=self.size, timeout=_NO_LIMIT)
        self._meetings = 0
        self._library: NativeLibrary | None = None
        self._neighbours: list[int] = []
        self._mailboxes: Mailboxes | None = None
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def _wait_for_all(self) -> None:
        """Wait until all ranks have come, for as long as an answer may take."""
        names = [f"here/{rank}" for rank in range(self.size)]
        self.store.set(names[self.rank], "")
        try:
            self.store.wait(names, timedelta(seconds=self.timeout_s))
        except RuntimeError as error:
            missing = [str(rank) for rank, name in enumerate(names) if not self.store.check([name])]
            raise RankFailure(
                f"rank {', '.join(missing)} did not come within {self.timeout_s:g} s, as rank {self.rank} saw it: start all {self.size}"
            ) from error

    def group(self, ranks: Sequence[int], *, backend: str = "gloo") -> Any:
        """A process group; every rank has to ask for the same groups in the same order."""
        return dist.new_group(list(ranks), backend=backend, timeout=_NO_LIMIT)

    def share_memory(self) -> None:
        """Let messages between ranks of one machine go through memory from now on, if that can be had; all ranks call this.

        Without the native kernels, or where ranks don't see each other's memory, messages go on as before.
        """
        if self._neighbours:
            return
        with suppress(NativeUnavailable):
            self._library = load_library()
        self.store.set(f"machine/{self.rank}", machine_name())
        machines = [self.store.get(f"machine/{rank}").decode() for rank in range(self.size)]
        self._neighbours = [rank for rank, machine in enumerate(machines) if machine == machine_name()]
        place, size = self._neighbours.index(self.rank), len(self._neighbours)
        if size > MOST_RANKS:
            return
        memory = self._shared_memory(f"mailboxes/{self._neighbours[0]}", mailbox_bytes(size), self._neighbours)
        self._mailboxes = None if memory is None else Mailboxes(memory, place=place, size=size, room_s=self.timeout_s)

    def tensor_group(self, ranks: Sequence[int], device: torch.device) -> ParallelGroup | None:
        """The tensor-parallel group of some ranks, as one of them; None for the others. As `group`.

        On GPUs it is NCCL's; on CPUs ranks that share memory use that, others gloo.
        """
        process_group = self.group(ranks, backend="nccl" if device.type == "cuda" else "gloo")
        if self.rank not in ranks:
            return None
        if device.type == "cpu" and set(ranks) <= set(self._neighbours):
            name = process_group.group_name
            memory = self._shared_memory(f"group/{name}", shared_group_bytes(len(ranks)), ranks)
            if memory is not None:
                return SharedGroup(memory, rank=list(ranks).index(self.rank), size=len(ranks), name=name)
        return TorchGroup(process_group)

    def _shared_memory(self, name: str, num_bytes: int, ranks: Sequence[int]) -> SharedMemory | None:
        if len(ranks) == 1:
            return None
        return share_memory(self.store, name, num_bytes, ranks=ranks, rank=self.rank, library=self._library)

    def send(self, to: int, message: Any) -> None:
        """Send an object, without waiting until it is there."""
        self.send_all([to], message)

    def send_all(self, ranks: Sequence[int], message: Any) -> None:
        """Send an object to several ranks, without waiting until it is there."""
        content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        data = torch.frombuffer(bytearray(len(content).to_bytes(_LENGTH, "little") + content), dtype=torch.uint8)
        first = torch.zeros(_INLINE, dtype=torch.uint8)
        first[: min(len(data), _INLINE)] = data[:_INLINE]
        rest = data[_INLINE:].clone()
        for rank in ranks:
            self._send(rank, first, _OBJECTS)
            self._send(rank, rest, _OBJECTS)

    def receive(self, source: int, *, owed: bool = True) -> Any:
        """The next object from a rank.

        Args:
            source: that rank.
            owed: whether it must come within the time limit; otherwise it may take as long as it likes.

        Raises:
            RankFailure: if it doesn't.
        """
        first = self._receive(source, torch.empty(_INLINE, dtype=torch.uint8), _OBJECTS, owed=owed)
        data = first.numpy().tobytes()
        length = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
        if length > _INLINE:
            rest = self._receive(source, torch.empty(length - _INLINE, dtype=torch.uint8), _OBJECTS)
            data += rest.numpy().tobytes()
        return pickle.loads(data[_LENGTH:length])

    def send_tensor(self, to: int, tensor: Tensor) -> None:
        """Send a tensor, whose shape the receiver knows, without waiting until it is there; it must not be changed meanwhile."""
        self._send(to, tensor.contiguous(), _TENSORS)

    def receive_tensor(self, source: int, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """The next tensor from a rank.

        Raises:
            RankFailure: if it doesn't come.
        """
        return self._receive(source, torch.empty(tuple(shape), dtype=dtype), _TENSORS)

    def gather_objects(self, mine: Any, group: Any) -> list[Any]:
        """What every rank of a group gives, in the order of its ranks."""
        found: list[Any] = [None] * dist.get_world_size(group)
        with self._told("another replica"):
            dist.all_gather_object(found, mine, group=group)
        return found

    def collectives(self) -> AbstractContextManager[None]:
        """Around what runs collectives: their failures are told like others.

        Raises:
            RankFailure: if a rank that takes part is gone.
        """
        return self._told("a rank of this stage")

    def meet(self) -> None:
        """Wait until all ranks are here; one that hangs on its way is the heartbeat's matter."""
        self._meetings += 1
        name = f"meeting/{self._meetings}"
        self.store.add(name, 1)
        while self.store.add(name, 0) < self.size:
            sleep(_POLL_S)

    def close(self, *, timeout_s: float | None = None) -> None:
        """Leave the job; nothing can be sent any more, and what was sent is there, unless its receiver is gone.

        Args:
            timeout_s: seconds that receivers have; None for as many as other answers may take.
        """
        ends = monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        with suppress(RankFailure):
            while self._sent:
                with self._told("a rank"):
                    self._sent.popleft()[0].wait(timedelta(seconds=max(0.001, ends - monotonic())))
        dist.destroy_process_group()

    def _send(self, to: int, tensor: Tensor, tag: int) -> None:
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()
        if tensor.numel() == 0:
            return
        if self._mailboxes is not None and to in self._neighbours and self._mailboxes.put(self._neighbours.index(to), tensor, tag):
            return
        with self._told(f"rank {to}"):
            self._sent.append((dist.isend(tensor, to, tag=tag), tensor))

    def _receive(self, source: int, tensor: Tensor, tag: int, *, owed: bool = True) -> Tensor:
        if tensor.numel() == 0:
            return tensor
        if self._mailboxes is not None and source in self._neighbours:
            limit_s = self.timeout_s if owed else None
            if self._mailboxes.take(self._neighbours.index(source), tensor, tag, limit_s=limit_s):
                return tensor
        with self._told(f"rank {source}"):
            work: Any = dist.irecv(tensor, source, tag=tag)
            work.wait(timedelta(seconds=self.timeout_s) if owed else _NO_LIMIT)
        return tensor

    def _told(self, others: str) -> AbstractContextManager[None]:
        return transport_told(others, rank=self.rank, timeout_s=self.timeout_s)


def world_size() -> int:
    """How many ranks this process was started with; 1 if it is alone."""
    value = os.environ.get("WORLD_SIZE", "1")
    if not value.isdigit() or int(value) < 1:
        raise UsageError(f"WORLD_SIZE={value!r} is not allowed: start ranks with torchrun, which sets it")
    return int(value)
