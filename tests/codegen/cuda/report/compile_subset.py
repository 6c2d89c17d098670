"""Compiles a few variants for each GPU, without the interpreter that the tests run in, and prints what came of it as JSON."""

import json
from dataclasses import replace

from flexspec.codegen.cuda.kernels.variant import KernelVariant
from flexspec.codegen.cuda.report.variant_report import report_variant
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget, find_target
from flexspec.codegen.cuda.variants import kernel_variants


def attention(target: GpuTarget, *, dtype: str, cache: str | None = None) -> KernelVariant:
    """The first variant of attention over tails, of heads of at most 128 dims."""
    return next(
        variant
        for variant in kernel_variants(target)
        if variant.kernel == "tree_attention"
        and variant.signature["q"] == f"*{dtype}"
        and variant.signature["keys"] == f"*{cache or dtype}"
        and variant.constants["HAS_TAIL"]
        and variant.constants["BLOCK_D"] <= 128
    )


def main() -> None:
    """Compile, and print a list of reports for each name."""
    sm_80, sm_90, gfx942 = (find_target(name) for name in ("sm_80", "sm_90", "gfx942"))
    subset = {
        "half": [(attention(target, dtype="bf16"), target) for target in TARGETS],
        "float8": [(attention(sm_90, dtype="bf16", cache="fp8e4nv"), sm_90)],
        "float32": [(attention(sm_80, dtype="fp32"), sm_80)],
        "unaligned": [(replace(attention(gfx942, dtype="bf16"), divisible=frozenset()), gfx942)],
    }
    reports = {name: [report_variant(*item).to_json() for item in items] for name, items in subset.items()}
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
