"""`flexspec::top_experts`: which experts a token goes to, and with what shares: softmax routing (Shazeer et al., 2017)."""

import torch
from torch import Tensor

from flexspec.ir.ops.library import define


def _reference(logits: Tensor, top_k: int, normalised: bool) -> tuple[Tensor, Tensor]:
    scores = logits.float() if normalised else torch.softmax(logits.float(), dim=-1)
    values, ids = torch.topk(scores, top_k, dim=-1)
    return (torch.softmax(values, dim=-1) if normalised else values).to(logits.dtype), ids


def _fake(logits: Tensor, top_k: int, normalised: bool) -> tuple[Tensor, Tensor]:
    shape = (*logits.shape[:-1], top_k)
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int64)


# logits: [..., experts]; results: [..., top_k], the softmax of the largest logits, over all or with `normalised` over these, so that they
# add up to 1; and whose they are, int64, the best first.
TOP_EXPERTS = define("top_experts(Tensor logits, int top_k, bool normalised) -> (Tensor, Tensor)", reference=_reference, fake=_fake)
