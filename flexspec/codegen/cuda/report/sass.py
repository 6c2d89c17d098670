"""The instructions that matter in a disassembly: wide loads, and those of the matrix units."""

import re
from dataclasses import dataclass

# An instruction follows an address comment and, now and then, a predicate.
_NVIDIA = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)")
_NVIDIA_LOAD = re.compile(r"(?:LDG|LDGSTS)\b")
_NVIDIA_WIDE = re.compile(r"\.128\b")
_NVIDIA_BULK = re.compile(r"(?:UTMALDG|UBLKCP)\b")
_NVIDIA_MATRIX = re.compile(r"(?:[HIDQ]MMA|[HIQ]GMMA|UTC[A-Z]*MMA)\b")
_AMD = re.compile(r"^\s+([a-z]\w+)", re.MULTILINE)
_AMD_WIDE = re.compile(r"(?:buffer|global|flat)_load_dwordx4\b")
_AMD_MATRIX = re.compile(r"v_mfma_")
_TENSOR_FLOAT = re.compile(r"(?<![a-z0-9])[tx]f32(?![a-z0-9])")


@dataclass(frozen=True, kw_only=True)
class Instructions:
    """How often the instructions that matter stand in a kernel's code.

    Attributes:
        wide_loads: loads of 16 bytes a thread from global memory, or of whole tiles.
        matrix: instructions of the matrix units.
        matrix_names: which those are, in alphabetical order, without their modifiers.
    """

    wide_loads: int
    matrix: int
    matrix_names: tuple[str, ...]


def nvidia_instructions(disassembly: str) -> Instructions:
    """From `cuobjdump -sass`."""
    names = _NVIDIA.findall(disassembly)
    wide = sum(1 for name in names if _NVIDIA_BULK.match(name) or (_NVIDIA_LOAD.match(name) and _NVIDIA_WIDE.search(name)))
    return _instructions(wide, [match[0] for match in map(_NVIDIA_MATRIX.match, names) if match])


def amd_instructions(assembly: str) -> Instructions:
    """From AMD's assembly."""
    names = _AMD.findall(assembly)
    return _instructions(sum(1 for name in names if _AMD_WIDE.match(name)), [name for name in names if _AMD_MATRIX.match(name)])


def has_tensor_float(assembly: str) -> bool:
    """Whether PTX or AMD's assembly multiplies float32 with 10 bits of mantissa (TF32, XF32)."""
    return _TENSOR_FLOAT.search(assembly) is not None


def _instructions(wide_loads: int, matrix: list[str]) -> Instructions:
    return Instructions(wide_loads=wide_loads, matrix=len(matrix), matrix_names=tuple(sorted(set(matrix))))
