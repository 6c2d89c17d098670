"""What of a request's sampling parameters kernels need for each node of its tree."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.truncate import Cuts, truncate, truncate_reference
from flexspec.codegen.tree_trials import TriedTrees
from flexspec.codegen.tree_walk import WalkedTrees

_ALIGNMENT = 16
"""Bytes: kernels load so many at once."""


def moved(arrays: Mapping[str, npt.NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
    """The arrays on a device, sent there in one copy that the host need not wait for."""
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values())])
    block = np.zeros(starts[-1], dtype=np.uint8)
    for start, array in zip(starts, arrays.values(), strict=False):
        block[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = torch.from_numpy(block).to(device, non_blocking=True)
    tensors = {}
    for start, (name, array) in zip(starts, arrays.items(), strict=False):
        dtype = torch.from_numpy(np.empty(0, dtype=array.dtype)).dtype
        own = there[start : start + array.nbytes].view(dtype) if array.size else torch.empty(0, dtype=dtype, device=device)
        tensors[name] = own.view(array.shape)
    return tensors


def node_rules(trees: WalkedTrees | TriedTrees) -> dict[str, npt.NDArray[Any]]:
    """[M] arrays, of each node what `truncate` takes: temperatures, vocab_limits, and if something is cut top_ks, top_ps and min_ps."""
    rules: dict[str, npt.NDArray[Any]] = {"temperatures": trees.temperatures, "vocab_limits": trees.vocab_limits}
    if trees.truncation is not None:
        rules |= vars(trees.truncation)
    sizes = np.diff(trees.node_starts)
    return {name: np.repeat(rule, sizes) for name, rule in rules.items()}


def cuts_of(logits: Tensor, rules: Mapping[str, Tensor]) -> Cuts | None:
    """What `node_rules`, on the device, leave; None if they cut nothing."""
    if "top_ks" not in rules:
        return None
    return (truncate if logits.is_cuda else truncate_reference)(logits, **rules)
