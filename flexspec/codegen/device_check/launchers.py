"""The kernels by name: launched on a GPU, their references in a dry run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from flexspec.codegen.cuda.kernels.combine_splits import combine_splits, combine_splits_reference
from flexspec.codegen.cuda.kernels.draft_level import draft_level, draft_level_reference
from flexspec.codegen.cuda.kernels.draft_top import draft_top, draft_top_reference
from flexspec.codegen.cuda.kernels.kv_commit import kv_commit, kv_commit_reference
from flexspec.codegen.cuda.kernels.philox import keyed_noise, keyed_noise_reference
from flexspec.codegen.cuda.kernels.probabilities import probabilities, probabilities_reference
from flexspec.codegen.cuda.kernels.residual import residual, residual_reference
from flexspec.codegen.cuda.kernels.rope_write import rope_write, rope_write_reference
from flexspec.codegen.cuda.kernels.tree_attention import tree_attention, tree_attention_reference
from flexspec.codegen.cuda.kernels.tree_verify import tree_verify, tree_verify_reference
from flexspec.codegen.cuda.kernels.truncate import truncate, truncate_reference


class Launchers(NamedTuple):
    """A kernel's launcher and its reference, which take the same arguments."""

    kernel: Callable[..., Any]
    reference: Callable[..., Any]


LAUNCHERS = {
    "tree_attention": Launchers(tree_attention, tree_attention_reference),
    "combine_splits": Launchers(combine_splits, combine_splits_reference),
    "rope_write": Launchers(rope_write, rope_write_reference),
    "kv_commit": Launchers(kv_commit, kv_commit_reference),
    "tree_verify": Launchers(tree_verify, tree_verify_reference),
    "truncate": Launchers(truncate, truncate_reference),
    "probabilities": Launchers(probabilities, probabilities_reference),
    "residual": Launchers(residual, residual_reference),
    "keyed_noise": Launchers(keyed_noise, keyed_noise_reference),
    "draft_top": Launchers(draft_top, draft_top_reference),
    "draft_level": Launchers(draft_level, draft_level_reference),
}


def launcher(name: str, device: torch.device) -> Callable[..., Any]:
    """What runs the kernel called `name` on a device."""
    launchers = LAUNCHERS[name]
    return launchers.kernel if device.type == "cuda" else launchers.reference
