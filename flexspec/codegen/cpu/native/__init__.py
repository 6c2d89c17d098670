"""A native executor: one C++ library, compiled on the user's machine, that runs a whole forward pass in one call."""

from flexspec.codegen.cpu.native.build import NativeUnavailable, default_cache_dir
from flexspec.codegen.cpu.native.library import NativeLibrary, load_library
from flexspec.codegen.cpu.native.operands import GatePrologue, Matrix, NormPrologue, Rotary, padded_head_dim
from flexspec.codegen.cpu.native.packing import PackedWeight, pack_linear
from flexspec.codegen.cpu.native.program import NativeProgram

__all__ = [
    "GatePrologue",
    "Matrix",
    "NativeLibrary",
    "NativeProgram",
    "NativeUnavailable",
    "NormPrologue",
    "PackedWeight",
    "Rotary",
    "default_cache_dir",
    "load_library",
    "pack_linear",
    "padded_head_dim",
]
