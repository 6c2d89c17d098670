"""Every kernel variant there is: what is compiled ahead of time, and all that launches may pick."""

from flexspec.codegen.cuda.kernels.variant import KernelVariant
from flexspec.codegen.cuda.targets import GpuTarget
from flexspec.errors import UsageError

try:
    from flexspec.codegen.cuda.kernels.combine_splits import combine_splits_variants
    from flexspec.codegen.cuda.kernels.draft_level import draft_level_variants
    from flexspec.codegen.cuda.kernels.draft_top import draft_top_variants
    from flexspec.codegen.cuda.kernels.kv_commit import kv_commit_variants
    from flexspec.codegen.cuda.kernels.philox import keyed_noise_variants
    from flexspec.codegen.cuda.kernels.probabilities import probabilities_variants
    from flexspec.codegen.cuda.kernels.residual import residual_variants
    from flexspec.codegen.cuda.kernels.rope_write import rope_write_variants
    from flexspec.codegen.cuda.kernels.tree_attention import tree_attention_variants
    from flexspec.codegen.cuda.kernels.tree_verify import tree_verify_variants
    from flexspec.codegen.cuda.kernels.truncate import truncate_variants
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "triton":
        raise
    raise UsageError("GPU kernels are written in Triton, which is not installed: pip install triton (on Linux, x86-64)") from error


def kernel_variants(target: GpuTarget) -> list[KernelVariant]:
    """All variants for a GPU, in a fixed order."""
    return [
        *rope_write_variants(target),
        *tree_attention_variants(target),
        *combine_splits_variants(target),
        *kv_commit_variants(target),
        *truncate_variants(target),
        *tree_verify_variants(target),
        *probabilities_variants(target),
        *residual_variants(target),
        *keyed_noise_variants(target),
        *draft_top_variants(target),
        *draft_level_variants(target),
    ]
