"""What is known of a compiled variant."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from flexspec.codegen.cuda.kernels.variant import KernelVariant
from flexspec.codegen.cuda.report.compile_ahead import Compiled, compile_variant
from flexspec.codegen.cuda.report.resources import Resources, amd_resources, nvidia_resources
from flexspec.codegen.cuda.report.sass import Instructions, amd_instructions, has_tensor_float, nvidia_instructions
from flexspec.codegen.cuda.report.tools import disassemble, resource_usage
from flexspec.codegen.cuda.targets import GpuTarget

ATTENTION = "tree_attention"
# The driver keeps a kilobyte of every program's shared memory, and from sm_90 on cubins say so.
_RESERVED_BYTES = 1024
_FIRST_TO_RESERVE = 90


@dataclass(frozen=True, kw_only=True)
class VariantReport:
    """A variant and what the compiler made of it.

    Attributes:
        target: the target's name.
        kernel: the kernel's name.
        case: what the variant is for.
        num_warps: warps of a program.
        element_types: of what its pointers point to, such as "bf16", in alphabetical order.
        head_dim: most dims of a head that the variant is for, if it has heads.
        tile_loads: how often a thread loads 16 bytes of a tile of queries, keys and values if it never loads less; None where a
            program has no such tiles.
        resources: what a program takes.
        instructions: those that matter.
        tensor_float: whether it multiplies float32 with 10 bits of mantissa.
    """

    target: str
    kernel: str
    case: str
    num_warps: int
    element_types: tuple[str, ...]
    head_dim: int | None
    tile_loads: int | None
    resources: Resources
    instructions: Instructions
    tensor_float: bool

    def to_json(self) -> dict[str, Any]:
        """As `from_json` takes it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "VariantReport":
        """Of what `to_json` gave, from a file.

        Raises:
            TypeError, KeyError: if it isn't that.
        """
        instructions = values["instructions"]
        return cls(
            **{
                **values,
                "element_types": tuple(values["element_types"]),
                "resources": Resources(**values["resources"]),
                "instructions": Instructions(**{**instructions, "matrix_names": tuple(instructions["matrix_names"])}),
            }
        )


def report_variant(variant: KernelVariant, target: GpuTarget) -> VariantReport:
    """Compiles a variant and looks at the result.

    Raises:
        CompileError: the compiler refuses it.
    """
    compiled = compile_variant(variant, target)
    resources, instructions = _look_at(compiled, target)
    head_dim = variant.constants.get("BLOCK_D", variant.constants.get("BLOCK_DIM"))
    return VariantReport(
        target=target.name,
        kernel=variant.kernel,
        case=variant.case,
        num_warps=variant.num_warps,
        element_types=tuple(sorted({kind[1:] for kind in variant.signature.values() if kind.startswith("*")})),
        head_dim=None if head_dim is None else int(head_dim),
        tile_loads=_tile_loads(variant, target),
        resources=resources,
        instructions=instructions,
        tensor_float=has_tensor_float(compiled.assembly),
    )


def element_bytes(kind: str) -> int:
    """Size of what a pointer of this type in a signature points to, such as "*bf16"."""
    digits = re.search(r"\d+", kind)
    assert digits is not None, kind
    return int(digits[0]) // 8


def _tile_loads(variant: KernelVariant, target: GpuTarget) -> int | None:
    if variant.kernel != ATTENTION:
        return None
    constants, threads = variant.constants, variant.num_warps * target.warp_size
    rows: dict[str, int] = {"q": constants["BLOCK_M"], "keys": constants["BLOCK_N"], "values": constants["BLOCK_N"]}
    tile_bytes: dict[str, int] = {
        name: count * constants["BLOCK_D"] * element_bytes(variant.signature[name]) for name, count in rows.items()
    }
    return sum(max(size // (16 * threads), 1) for size in tile_bytes.values())


def _look_at(compiled: Compiled, target: GpuTarget) -> tuple[Resources, Instructions]:
    if target.backend == "hip":
        return amd_resources(compiled.assembly, launched_bytes=compiled.shared_bytes), amd_instructions(compiled.assembly)
    reserved = _RESERVED_BYTES if int(target.arch) >= _FIRST_TO_RESERVE else 0
    resources = nvidia_resources(resource_usage(compiled.binary), reserved_bytes=reserved, launched_bytes=compiled.shared_bytes)
    return resources, nvidia_instructions(disassemble(compiled.binary))
