"""Fusion of native instructions: of norms, gates, activations and residuals into linears, of copies into what makes the value copied."""

from collections import Counter
from dataclasses import replace

import torch

from flexspec.codegen.cpu.instruction_list import Columns, Instruction, InstructionList

_COPIES = {torch.ops.aten.cat.default}
"""Operators that are nothing but copies."""


def fuse(program: InstructionList) -> None:
    """Rewrite the list in place; each fusion saves a pass over the activations and a barrier between threads."""
    _fuse_squares(program)
    _fuse_activations(program)
    _fuse_residuals(program)
    _fuse_prologues(program)
    _fuse_copies(program)


def _readers(program: InstructionList) -> Counter[int]:
    readers = Counter(value.value for instruction in program.instructions for value in instruction.inputs.values())
    for value in (program.logits, *program.hidden_states):
        readers[value.value] += 1
    return readers


def _producers(program: InstructionList) -> dict[int, Instruction]:
    return {instruction.out.value: instruction for instruction in program.instructions}


def _whole(columns: Columns, producer: Instruction) -> bool:
    return columns.start == 0 and columns.cols == producer.out.cols


def _fuse_squares(program: InstructionList) -> None:
    readers, producers = _readers(program), _producers(program)
    for instruction in list(program.instructions):
        if instruction.kind != "mul" or instruction.inputs["a"] != instruction.inputs.get("b"):
            continue
        relu = producers.get(instruction.inputs["a"].value)
        if relu is None or relu.options.get("kind") != "relu" or readers[relu.out.value] != 2 or not _whole(instruction.inputs["a"], relu):
            continue
        relu.options["kind"] = "relu_squared"
        relu.absorbed[str(instruction.node.target)] = "native, in the activation before it"
        relu.out = instruction.out
        program.instructions.remove(instruction)


def _fuse_activations(program: InstructionList) -> None:
    readers, producers = _readers(program), _producers(program)
    for instruction in list(program.instructions):
        if instruction.kind != "activation":
            continue
        linear = producers.get(instruction.inputs["x"].value)
        if linear is None or linear.kind != "linear" or readers[linear.out.value] != 1 or not _whole(instruction.inputs["x"], linear):
            continue
        linear.options["activation"] = instruction.options["kind"]
        linear.absorbed |= {str(instruction.node.target): "native, in the linear before it"} | instruction.absorbed
        linear.out = instruction.out
        program.instructions.remove(instruction)


def _fuse_residuals(program: InstructionList) -> None:
    readers, producers = _readers(program), _producers(program)
    for instruction in list(program.instructions):
        if instruction.kind != "add" or {columns.cols for columns in instruction.inputs.values()} != {instruction.out.cols}:
            continue
        for branch, stream in (("b", "a"), ("a", "b")) if len(instruction.inputs) == 2 else ():
            linear = producers.get(instruction.inputs[branch].value)
            if linear is None or linear.kind != "linear" or "residual" in linear.inputs:
                continue
            if readers[linear.out.value] != 1 or not _whole(instruction.inputs[branch], linear):
                continue
            # The linear runs where the sum was: by then the residual stream is there.
            linear.inputs["residual"] = instruction.inputs[stream]
            linear.absorbed[str(instruction.node.target)] = "native, in the linear before it"
            linear.out = instruction.out
            program.instructions.remove(linear)
            program.instructions[program.instructions.index(instruction)] = linear
            break


def _fuse_prologues(program: InstructionList) -> None:
    readers, producers = _readers(program), _producers(program)
    for instruction in program.instructions:
        if instruction.kind != "linear":
            continue
        before = producers.get(instruction.inputs["x"].value)
        if before is None or readers[before.out.value] != 1 or not _whole(instruction.inputs["x"], before):
            continue
        if before.kind == "gate" or (before.kind in ("layer_norm", "rms_norm") and before.options["groups"] == 1):
            del instruction.inputs["x"]
            instruction.inputs |= before.inputs
            instruction.options["prologue"] = (before.kind, before.options)
            instruction.absorbed[str(before.node.target)] = "native, in the linear after it"
            before.kind = "fused"
    program.instructions[:] = [instruction for instruction in program.instructions if instruction.kind != "fused"]


def _fuse_copies(program: InstructionList) -> None:
    """Let a value that is only copied into a wider one be written there at once."""
    readers, producers = _readers(program), _producers(program)
    for instruction in list(program.instructions):
        if instruction.kind != "copy":
            continue
        source = instruction.inputs["x"]
        if readers[source.value] != 1:
            continue
        producer = producers.get(source.value)
        if source == program.features:
            program.features = instruction.out
        elif producer is not None and replace(producer.out, heads=1) == source:
            producer.out = instruction.out
            if instruction.node.target in _COPIES:
                producer.absorbed[str(instruction.node.target)] = "native, written in place"
        else:
            continue
        program.instructions.remove(instruction)
