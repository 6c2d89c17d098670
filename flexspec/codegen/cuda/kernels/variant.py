"""What is known of a specialisation of a kernel before it is launched: enough to compile it ahead of time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from flexspec.errors import UsageError

_TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint64: "u64",
}


DEFAULT_STAGES = 2


class UncoveredCase(UsageError):
    """A launch that no variant of a kernel was made for; the message names the case and what there is."""


@dataclass(frozen=True, kw_only=True)
class KernelVariant:
    """One specialisation of a kernel.

    Attributes:
        kernel: the kernel's name.
        case: what this one is for, unique among the kernel's variants of a target; for tables and messages.
        function: the `triton.jit` function.
        signature: Triton's type of each parameter in order, such as "*bf16", "i32", "fp32"; "constexpr" for constants.
        constants: the values of the "constexpr" parameters.
        divisible: the parameters that launches make multiples of 16 (addresses, strides, sizes): without them loads are scalar.
        num_warps: warps of a program.
        num_stages: depth of the software pipeline.
    """

    kernel: str
    case: str
    function: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    divisible: frozenset[str] = field(default_factory=frozenset)
    num_warps: int = 4
    num_stages: int = DEFAULT_STAGES

    def __post_init__(self) -> None:
        constant = {name for name, kind in self.signature.items() if kind == "constexpr"}
        assert constant == set(self.constants), f"{self.kernel}: constants {sorted(constant ^ set(self.constants))}"
        assert self.divisible <= set(self.signature) - constant, f"{self.kernel}: divisible {sorted(self.divisible - set(self.signature))}"


def launch_options(num_warps: int, num_stages: int = DEFAULT_STAGES) -> dict[str, Any]:
    """Options of a launch, as a variant is compiled with: Triton's own defaults differ between GPUs and between its versions."""
    return {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}


def triton_type(dtype: torch.dtype, *, is_pointer: bool = True) -> str:
    """Triton's name of a type in a signature, that of a pointer to it by default."""
    return ("*" if is_pointer else "") + _TYPES[dtype]
