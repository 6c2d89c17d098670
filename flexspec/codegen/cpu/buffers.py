"""Memory of the values of a native program."""

import torch
from torch import Tensor

from flexspec.codegen.cpu.instruction_list import Columns, InstructionList
from flexspec.codegen.cpu.native.operands import Matrix
from flexspec.codegen.lazy_memory import lazy_zeros


class Buffers:
    """One [max tokens, cols] float32 tensor a value, reused when the value has been read for the last time.

    What is filled before a pass or read after it (positions, features, logits, hidden states) has memory of its own.
    """

    def __init__(self, program: InstructionList, max_tokens: int) -> None:
        self.num_bytes = 0
        self._max_tokens = max_tokens
        self._tensors: dict[int, Tensor] = {}
        self._free: dict[int, list[Tensor]] = {}
        filled = [*program.position_values, *([program.features] if program.features else [])]
        kept = {columns.value for columns in (*filled, program.logits, *program.hidden_states)}
        written = [*filled, *(instruction.out for instruction in program.instructions)]
        widths: dict[int, int] = {}
        for columns in written:
            widths[columns.value] = max(widths.get(columns.value, 0), columns.start + columns.cols)
        last_read = {value.value: i for i, instruction in enumerate(program.instructions) for value in instruction.inputs.values()}
        for columns in filled:
            self._allocate(columns.value, widths)
        for i, instruction in enumerate(program.instructions):
            self._allocate(instruction.out.value, widths)
            for value in {columns.value for columns in instruction.inputs.values()}:
                if last_read[value] == i and value not in kept:
                    self._free.setdefault(widths[value], []).append(self._tensors[value])

    def _allocate(self, value: int, widths: dict[int, int]) -> None:
        if value in self._tensors:
            return
        if pool := self._free.get(widths[value]):
            self._tensors[value] = pool.pop()
            return
        self._tensors[value] = lazy_zeros((self._max_tokens, widths[value]), torch.float32)
        self.num_bytes += self._tensors[value].nbytes

    def tensor(self, columns: Columns) -> Tensor:
        """Columns of a value, [max tokens, cols]."""
        return self._tensors[columns.value][:, columns.start : columns.start + columns.cols]

    def matrix(self, columns: Columns) -> Matrix:
        """Columns of a value as the kernels take them."""
        return Matrix(buffer=self._tensors[columns.value], start=columns.start, cols=columns.cols)
