"""The forms in which attention operators take padding, as one additive mask."""

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.values import Trial, Value


def padding_mask(context: ImportContext, node: NodeProto, given: Value, filled: float) -> Value:
    """What a padding input adds to scores, [batch or 1, 1, length or 1, length]; `filled` where a key is hidden.

    It may be [batch, keys] or [batch, queries, keys] or [batch, 1, queries, keys] with 0 for hidden keys, the sequences' lengths [batch],
    or their ends and then their starts [2 * batch].

    Raises:
        UsageError: if it is of another form, or depends on the tokens.
    """
    if not given.is_token_free:
        raise context.refusal(node, "its padding depends on the tokens, which is not supported")

    def mask(trial: int) -> Tensor:
        visible = _visible(context.trials[trial], given.trials[trial])
        if visible is None:
            raise context.refusal(
                node, f"its padding has shape {list(given.trials[0].shape)} in a batch of {context.trials[0].batch}, which is not supported"
            )
        return torch.where(visible, 0.0, filled)

    return context.each(mask)


def _visible(trial: Trial, given: Tensor) -> Tensor | None:
    batch, length = trial
    keys = torch.arange(length)
    if given.dim() == 1 and len(given) in (batch, 2 * batch):
        visible = keys < given[:batch, None]
        if len(given) == 2 * batch:
            visible &= keys >= given[batch:, None]
        return visible[:, None, None]
    if given.dim() == 2 and given.shape[1] == length:
        return (given != 0)[:, None, None]
    if given.dim() == 3 and given.shape[1:] == (length, length):
        return (given != 0)[:, None]
    if given.dim() == 4 and given.shape[1] == 1 and given.shape[2] == given.shape[3] >= length:
        return given[:, :, :length, :length] != 0
    return None
