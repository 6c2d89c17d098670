"""A native program that is cut where ranks talk to each other."""

from collections.abc import Callable

import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.cpu.native.arguments import BatchArguments
from flexspec.codegen.cpu.native.library import NativeLibrary
from flexspec.codegen.cpu.native.program import NativeProgram
from flexspec.codegen.kv_storage import KVStorage

Collective = Callable[[Batch], None]
"""What happens between two segments of a pass over a batch, on buffers that the segments use."""


class SegmentedProgram:
    """Native programs that run one after the other, with collectives between them; without any it is a single program."""

    def __init__(self, library: NativeLibrary, *, dtype: torch.dtype, num_threads: int) -> None:
        self._library = library
        self._dtype = dtype
        self._num_threads = num_threads
        self._arguments = BatchArguments()
        self._steps: list[NativeProgram | Collective] = []

    @property
    def last(self) -> NativeProgram:
        """The program that takes the next operators."""
        if not self._steps or not isinstance(self._steps[-1], NativeProgram):
            self._steps.append(NativeProgram(self._library, dtype=self._dtype, num_threads=self._num_threads, arguments=self._arguments))
        program = self._steps[-1]
        assert isinstance(program, NativeProgram)
        return program

    def cut(self, collective: Collective) -> None:
        """Let operators that come from now on wait for a collective."""
        self._steps.append(collective)

    def run(self, batch: Batch, kv: KVStorage) -> None:
        """Run all segments on a batch; see `NativeProgram.run`."""
        self._arguments.fill(batch)
        for step in self._steps:
            if isinstance(step, NativeProgram):
                step.run_filled(batch, kv)
            else:
                step(batch)
