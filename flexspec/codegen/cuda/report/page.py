"""docs/kernels.md: what the compilers made of each variant, and how long each kernel must take."""

from collections.abc import Sequence

from flexspec.codegen.cuda.report.markdown import table
from flexspec.codegen.cuda.report.roofline_tables import roofline_section
from flexspec.codegen.cuda.report.variant_report import VariantReport
from flexspec.codegen.cuda.targets import TARGETS

_HEAD = """\
# GPU kernels

`make kernels` writes this page. It compiles every variant that `flexspec/codegen/cuda/variants.py` lists, for every GPU, with the
alignment that launches have, on a machine that needs no GPU; it fails if a check of the next section does.

## Checks

- A thread keeps all it needs in registers, unless a head has more than 128 dims.
- A program's shared memory fits the chip's: {limits}.
- Attention in 16 bits has at least as many loads of 16 bytes a thread as a tile of queries, keys and values takes, and multiplies in
  the matrix units.
- Where all is float32, nothing is multiplied in TF32.
- There are at most 150 variants for a GPU; there are {counts}.

## Resources

Vector registers of a thread (AMD's accumulation registers included); shared memory of a program; in attention, how many loads of
16 bytes and how many instructions of the matrix units stand in its code. Compiled by Triton {version}.
"""


def kernels_page(reports: Sequence[VariantReport], *, triton_version: str) -> str:
    """The page, in Markdown.

    Args:
        reports: of all variants for all targets.
        triton_version: of the compiler.
    """
    limits = ", ".join(f"{target.shared_bytes // 1024} KiB on {target.name}" for target in TARGETS)
    counts = ", ".join(f"{sum(report.target == target.name for report in reports)} for {target.name}" for target in TARGETS)
    parts = [_HEAD.format(limits=limits, counts=counts, version=triton_version)]
    for kernel in dict.fromkeys(report.kernel for report in reports):
        parts.append(_kernel_section(kernel, [report for report in reports if report.kernel == kernel]))
    return "\n".join([*parts, roofline_section()])


def _kernel_section(kernel: str, reports: Sequence[VariantReport]) -> str:
    by_place = {(report.case, report.target): report for report in reports}
    cases = dict.fromkeys(report.case for report in reports)
    rows = [[case, *(_cell(by_place.get((case, target.name))) for target in TARGETS)] for case in cases]
    return f"### {kernel}\n\n" + table(["variant", *(target.name for target in TARGETS)], rows)


def _cell(report: VariantReport | None) -> str:
    if report is None:
        return ""
    parts = [f"{report.resources.registers} regs"]
    if report.resources.shared_bytes:
        parts.append(f"{report.resources.shared_bytes / 1024:.3g} KiB")
    if report.resources.spill_bytes:
        parts.append(f"**{report.resources.spill_bytes} B spilled**")
    if report.instructions.matrix:
        parts.append(f"{report.instructions.wide_loads} loads")
        parts.append(f"{report.instructions.matrix} {'/'.join(report.instructions.matrix_names)}")
    return ", ".join(parts)
