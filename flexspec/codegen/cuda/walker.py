"""Walks trees by the `tree_verify` kernel: three small results, fetched in one copy."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.codegen.batch import Int32
from flexspec.codegen.cuda.kernels.tree_verify import tree_verify, tree_verify_reference
from flexspec.codegen.cuda.node_rules import cuts_of, moved, node_rules
from flexspec.codegen.cuda.trials import KernelTrials
from flexspec.codegen.tree_trials import TreeTrials
from flexspec.codegen.tree_walk import WalkedTrees, Walks

_KEYS = ("seeds", "completions", "indices", "temperatures")


class KernelWalker:
    """A `TreeWalker`: on a GPU the kernels decide, elsewhere their references."""

    def __init__(self) -> None:
        self.trials: TreeTrials = KernelTrials()

    def launch(self, logits: Tensor, trees: WalkedTrees) -> Tensor:
        """See `TreeWalker.launch`."""
        verify = tree_verify if logits.is_cuda else tree_verify_reference
        names = ["node_starts", "vocab_limits"]
        if trees.temperatures.any():
            names += _KEYS
        on_device: dict[str, Tensor] = {}
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(trees, name) for name in names}
        for name, nodes in (("tokens", trees.tokens), ("parents", trees.parents)):
            if isinstance(nodes, Tensor):
                on_device[name] = nodes
            else:
                arrays[name] = nodes
        cuts = None
        if trees.truncation is not None:
            cuts = cuts_of(logits, moved(node_rules(trees), logits.device))
        walks = verify(
            logits,
            **on_device,
            **moved(arrays, logits.device),
            cuts=cuts,
            max_depth=trees.max_depth or int(np.diff(trees.node_starts).max()),
        )
        return torch.cat([walks.lengths[:, None], walks.bonus[:, None], walks.paths], dim=1)

    def read(self, packed: Int32) -> Walks:
        """See `TreeWalker.read`."""
        return Walks(paths=packed[:, 2:], lengths=packed[:, 0], bonus=packed[:, 1])

    def __call__(self, logits: Tensor, trees: WalkedTrees) -> Walks:
        """See `TreeWalker.__call__`; the host waits once."""
        return self.read(self.launch(logits, trees).cpu().numpy())
