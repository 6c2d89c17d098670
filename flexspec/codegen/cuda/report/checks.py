"""What must hold of every compiled variant."""

from collections import Counter
from collections.abc import Callable, Sequence

from flexspec.codegen.cuda.report.variant_report import ATTENTION, VariantReport
from flexspec.codegen.cuda.targets import find_target

MOST_VARIANTS = 150
MOST_HEAD_DIM_WITHOUT_SPILLS = 128
_HALF_TYPES = {"bf16", "fp16"}

Check = Callable[[VariantReport], str | None]
"""What is wrong with a variant, if anything is."""


def spills(report: VariantReport) -> str | None:
    """Threads keep all they need in registers; larger heads than 128 may spill."""
    if report.resources.spill_bytes == 0 or (report.head_dim or 0) > MOST_HEAD_DIM_WITHOUT_SPILLS:
        return None
    return f"spills {report.resources.spill_bytes} bytes a thread"


def shared_memory(report: VariantReport) -> str | None:
    """A program's shared memory fits the chip's."""
    limit = find_target(report.target).shared_bytes
    if report.resources.shared_bytes <= limit:
        return None
    return f"takes {report.resources.shared_bytes} bytes of shared memory of {limit}"


def wide_loads(report: VariantReport) -> str | None:
    """Attention in 16 bits loads queries, keys and values 16 bytes a thread at a time: no fewer such loads than a tile takes."""
    if not _is_half_attention(report) or report.instructions.wide_loads >= (report.tile_loads or 1):
        return None
    return f"has {report.instructions.wide_loads} loads of 16 bytes, and a tile takes {report.tile_loads}"


def matrix_units(report: VariantReport) -> str | None:
    """Attention in 16 bits multiplies in the matrix units."""
    if not _is_half_attention(report) or report.instructions.matrix:
        return None
    return "doesn't use the matrix units"


def exact_float32(report: VariantReport) -> str | None:
    """Where everything is float32, nothing is multiplied in TF32."""
    if not report.tensor_float or _HALF_TYPES & set(report.element_types):
        return None
    return "multiplies float32 in TF32"


CHECKS: tuple[Check, ...] = (spills, shared_memory, wide_loads, matrix_units, exact_float32)


def failures(reports: Sequence[VariantReport]) -> list[str]:
    """A line for each check that fails, naming target, kernel and case."""
    found = [
        f"{target}: {count} variants, at most {MOST_VARIANTS} may be"
        for target, count in Counter(report.target for report in reports).items()
        if count > MOST_VARIANTS
    ]
    for report in reports:
        found += [f"{report.target}: {report.kernel} ({report.case}) {wrong}" for check in CHECKS if (wrong := check(report)) is not None]
    return found


def _is_half_attention(report: VariantReport) -> bool:
    return report.kernel == ATTENTION and bool(_HALF_TYPES & set(report.element_types))
