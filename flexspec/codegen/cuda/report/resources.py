"""Registers, shared memory and spills, from what the compilers say of a binary."""

import re
from dataclasses import dataclass

_USAGE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")
_METADATA = re.compile(r"^\s*(?:- )?\.(\w+):\s+(\d+)\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a program takes.

    Attributes:
        registers: vector registers of a thread, 4 bytes each; AMD's accumulation registers included.
        scalar_registers: those that a wave of threads shares; None where there are none to speak of.
        shared_bytes: shared memory of a program.
        spill_bytes: memory that a thread keeps values in for want of registers.
    """

    registers: int
    scalar_registers: int | None
    shared_bytes: int
    spill_bytes: int


def nvidia_resources(usage: str, *, reserved_bytes: int, launched_bytes: int) -> Resources:
    """From `cuobjdump -res-usage` of a cubin with one kernel.

    Args:
        usage: what it printed.
        reserved_bytes: shared memory that the driver keeps, counted as the kernel's though the limit is without it.
        launched_bytes: shared memory that a launch asks for besides.
    """
    counts = {name: int(count) for name, count in _USAGE.findall(usage)}
    assert {"REG", "STACK", "SHARED", "LOCAL"} <= set(counts), usage
    return Resources(
        registers=counts["REG"],
        scalar_registers=None,
        shared_bytes=max(counts["SHARED"] - reserved_bytes, 0) + launched_bytes,
        spill_bytes=counts["STACK"] + counts["LOCAL"],
    )


def amd_resources(assembly: str, *, launched_bytes: int) -> Resources:
    """From the metadata at the end of AMD's assembly of one kernel.

    Args:
        assembly: the compiler's.
        launched_bytes: shared memory that a launch asks for besides.
    """
    _, begin, metadata = assembly.partition(".amdgpu_metadata")
    assert begin, "no metadata"
    counts = {name: int(count) for name, count in _METADATA.findall(metadata)}
    return Resources(
        # Since gfx90a both kinds of vector registers come from one file, and .vgpr_count is their sum.
        registers=counts["vgpr_count"],
        scalar_registers=counts["sgpr_count"],
        shared_bytes=counts["group_segment_fixed_size"] + launched_bytes,
        spill_bytes=counts["private_segment_fixed_size"],
    )
