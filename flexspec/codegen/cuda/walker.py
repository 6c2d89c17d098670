"""Walks trees by the `tree_verify` kernel: three small results, fetched in one copy."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.tree_verify import tree_verify, tree_verify_reference
from flexspec.codegen.tree_walk import WalkedTrees, Walks


def walk_trees(logits: Tensor, trees: WalkedTrees) -> Walks:
    """A `TreeWalker`: on a GPU the kernel decides, elsewhere its reference; the host waits once, for what they say."""
    verify = tree_verify if logits.is_cuda else tree_verify_reference

    def moved(array: np.ndarray[Any, Any]) -> Tensor:
        return torch.from_numpy(array).to(logits.device, non_blocking=True)

    noise: dict[str, Tensor] = {}
    if trees.temperatures.any():
        noise = {name: moved(getattr(trees, name)) for name in ("seeds", "completions", "indices", "temperatures")}
    walks = verify(
        logits,
        moved(trees.tokens),
        moved(trees.parents),
        moved(trees.node_starts),
        vocab_limits=moved(trees.vocab_limits),
        max_depth=int(np.diff(trees.node_starts).max()),
        **noise,
    )
    fetched = torch.cat([walks.lengths[:, None], walks.bonus[:, None], walks.paths], dim=1).cpu().numpy()
    return Walks(paths=fetched[:, 2:], lengths=fetched[:, 0], bonus=fetched[:, 1])
