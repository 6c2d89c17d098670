"""The distillation loss: cross entropy to the LLM's distribution, through a frozen output matrix, without ever holding all logits."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CHUNK_ROWS = 256
"""Most rows whose logits are there at a time: with some thousands of columns they stay in the cache."""
_CHUNK_LOGITS = 2**24
"""Most logits that are there at a time, for vocabularies that are larger still."""


def chunk_rows(columns: int) -> int:
    """Rows of so many logits that are made at a time."""
    return max(min(_CHUNK_ROWS, _CHUNK_LOGITS // columns), 1)


class _Distillation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weights: Tensor, target: Tensor, lm_head: Tensor) -> Tensor:
        """See `distillation_loss`; the gradient is made along the way, chunk by chunk."""
        gradient = torch.empty_like(hidden, dtype=torch.float32)
        losses = torch.zeros(len(hidden), dtype=torch.float32)
        step = chunk_rows(len(lm_head))
        for begin in range(0, hidden.shape[1], step):
            end = min(begin + step, hidden.shape[1])
            wanted = torch.softmax((target[begin:end] @ lm_head.T).float(), dim=-1)  # [rows, draft vocab]
            for depth in range(len(hidden)):
                weight = weights[depth, begin:end]
                given = torch.log_softmax((hidden[depth, begin:end].to(lm_head.dtype) @ lm_head.T).float(), dim=-1)
                losses[depth] += weight @ -(wanted * given).sum(dim=-1)
                slope = given.exp_().sub_(wanted).mul_(weight[:, None])
                gradient[depth, begin:end] = (slope.to(lm_head.dtype) @ lm_head).float()
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * slopes[0][:, None, None], None, None, None


def distillation_loss(hidden: Tensor, weights: Tensor, target: Tensor, lm_head: Tensor) -> Tensor:
    """Weighted sums over rows of the cross entropy from the LLM's distribution to the draft's, both over the draft vocabulary.

    Args:
        hidden: [depths, rows, hidden] normed hidden states of the draft model.
        weights: [depths, rows] of the sums.
        target: [rows, hidden] normed hidden states of the LLM for the same predictions, in the dtype of `lm_head`.
        lm_head: [draft vocab, hidden]; both models'.

    Returns:
        [depths] float32; differentiable in `hidden`.
    """
    apply: Callable[..., Tensor] = _Distillation.apply  # untyped in PyTorch
    return apply(hidden, weights, target, lm_head)
