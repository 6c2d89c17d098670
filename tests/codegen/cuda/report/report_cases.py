"""Reports for tests."""

from typing import Any

from flexspec.codegen.cuda.report.resources import Resources
from flexspec.codegen.cuda.report.sass import Instructions
from flexspec.codegen.cuda.report.variant_report import VariantReport


def report(*, spill_bytes: int = 0, shared_bytes: int = 1024, wide_loads: int = 4, matrix: int = 8, **changes: Any) -> VariantReport:
    """Of a variant of attention that passes every check, but for what is changed."""
    values: dict[str, Any] = {
        "target": "sm_90",
        "kernel": "tree_attention",
        "case": "bf16",
        "num_warps": 4,
        "element_types": ("bf16", "i32"),
        "head_dim": 128,
        "tile_loads": 4,
        "resources": Resources(registers=100, scalar_registers=None, shared_bytes=shared_bytes, spill_bytes=spill_bytes),
        "instructions": Instructions(wide_loads=wide_loads, matrix=matrix, matrix_names=("HMMA",) if matrix else ()),
        "tensor_float": False,
    }
    return VariantReport(**{**values, **changes})
