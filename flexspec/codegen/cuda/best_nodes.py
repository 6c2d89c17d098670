"""The best nodes of trees that grew on the device, chosen and laid out there: what the LLM is to verify."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.draft_level import Level
from flexspec.codegen.cuda.kernels.draft_top import TopTokens

_WORD_BITS = 32


class BestNodes:
    """Sorts the children of all nodes that a draft model ran on by the probabilities of their paths.

    Of equals those of higher levels come first, so that a node comes after its parent, and every first part of the order is a tree.
    All of it are operations of fixed shapes that can be captured.

    Args:
        widths: rows of a request on each level that was fed, the roots' first.
        num_requests: R.
        num_children: of each node.
        num_nodes: of each tree that are wanted; no more than there can be are given.
        device: where the trees are.
    """

    def __init__(self, widths: Sequence[int], *, num_requests: int, num_children: int, num_nodes: int, device: torch.device) -> None:
        firsts = [0, *accumulate(widths)]  # place of each level's first node among a request's
        self.num_nodes = min(num_nodes, firsts[-1] * num_children)
        self._num_children = num_children
        self._doublings = len(widths).bit_length()  # the last children's distance from the root is the number of levels
        levels = np.repeat(np.arange(len(widths)), widths)
        above = np.maximum(levels - 1, 0)  # the level of a node's parent
        requests = np.arange(num_requests)[:, np.newaxis]
        shifts = np.array(firsts)[above] - requests * np.array(widths)[above]
        words = -(-(self.num_nodes + 1) // _WORD_BITS)
        own_bits = np.zeros((self.num_nodes + 1, words), dtype=np.uint32)
        numbers = np.arange(self.num_nodes + 1)
        own_bits[numbers, numbers // _WORD_BITS] = np.left_shift(np.uint32(1), (numbers % _WORD_BITS).astype(np.uint32))

        def moved(array: npt.NDArray[Any]) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device)

        self._shifts = moved(shifts.astype(np.int64))  # [R, fed]
        self._levels = moved(levels.astype(np.int64))  # [fed]
        self._ranks = moved(np.tile(np.arange(num_children, dtype=np.int32), len(levels)))  # [children]
        self._children_levels = moved(np.repeat(levels, num_children).astype(np.int64))  # [children]
        self._numbers = moved(np.arange(1, len(levels) * num_children + 1, dtype=np.int64)).expand(num_requests, -1)
        self._own_bits = moved(own_bits.view(np.int32)).expand(num_requests, -1, -1)
        self._padding = moved(np.array([0, -1, 0, -1, *[0] * words], dtype=np.int32))

    def __call__(self, levels: Sequence[Level], tops: Sequence[TopTokens], branches: Tensor) -> Tensor:
        """Choose nodes.

        Args:
            levels: those that were fed, the roots' first.
            tops: the children of their nodes; the logarithms of their shares are at most 0.
            branches: [R, levels] int32, how many children of a node of each level may be chosen, at least as many as were fed.

        Returns:
            int32 [R * `num_nodes`, columns]: tables of nodes as `flexspec.codegen.device_trees` has them, of each tree the best first.
        """
        count, k = len(branches), self._num_children
        ids = _joined([top.ids for top in tops], count)  # [R, children]
        paths, shares = _joined([level.log_probs for level in levels], count), _joined([top.log_probs for top in tops], count)
        is_left_out = (ids < 0) | (self._ranks >= branches.index_select(1, self._children_levels))
        scores = (paths[:, :, None] + shares.view(count, -1, k)).flatten(1).masked_fill(is_left_out, -torch.inf)
        best = scores.sort(dim=1, descending=True, stable=True)
        chosen, is_node = best.indices[:, : self.num_nodes], best.values[:, : self.num_nodes] > -torch.inf
        fed = chosen.div(k, rounding_mode="floor")  # whose children they are
        numbers = torch.empty_like(self._numbers).scatter_(1, best.indices, self._numbers)
        above = numbers.gather(1, self._children(levels, ids).gather(1, fed))
        parents = above * ((fed > 0) & is_node)
        columns = [ids.gather(1, chosen), parents, self._levels[fed] + 1, chosen]
        table = torch.cat([torch.stack([column.int() for column in columns], dim=2), self._bits(parents)], dim=2)
        return table.where(is_node[:, :, None], self._padding).flatten(0, 1)

    def _children(self, levels: Sequence[Level], ids: Tensor) -> Tensor:
        """[R, fed] which child each of the nodes that were fed is; any for roots and padding."""
        count, k = len(ids), self._num_children
        above = (_joined([level.parent_rows for level in levels], count) + self._shifts).clamp(min=0)
        siblings = ids.view(count, -1, k).gather(1, above[:, :, None].expand(-1, -1, k))
        is_own = siblings == _joined([level.token_ids for level in levels], count)[:, :, None]
        return above * k + is_own.int().argmax(dim=2)

    def _bits(self, parents: Tensor) -> Tensor:
        """[R, nodes, words] int32 bit rows, the roots' bits in them."""
        jumps = torch.nn.functional.pad(parents, (1, 0))
        bits = self._own_bits
        for _ in range(self._doublings):  # each time twice as far up
            bits = bits | bits.gather(1, jumps[:, :, None].expand(-1, -1, bits.shape[2]))
            jumps = jumps.gather(1, jumps)
        return bits[:, 1:]


def _joined(parts: Sequence[Tensor], count: int) -> Tensor:
    """[R, …] of parts whose rows are requests' one after the other."""
    return torch.cat([part.view(count, -1) for part in parts], dim=1)
