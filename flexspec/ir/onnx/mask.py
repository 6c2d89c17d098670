"""What an attention mask means, found by looking at its numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.ir.onnx.values import Trial, Value

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

HIDDEN = -9000.0
"""From here down a number added to a score hides it; some models use -10000, and half precision can't hold less than -65504."""

_TOLERANCE = 1e-5


class Meaning(NamedTuple):
    """Causal attention, to the last `window` tokens if given, with a bias of slope * distance a head if slopes [heads] are given."""

    window: int | None
    slopes: Tensor | None


def mask_meaning(context: "ImportContext", node: NodeProto, masks: Sequence[Value], *, heads: int) -> Meaning:
    """The meaning of masks that are added to the scores [batch, heads, queries, keys].

    Raises:
        UsageError: with what the mask looks like, if it depends on the tokens, shows later ones, or is of no known form.
    """
    if not all(mask.is_token_free for mask in masks):
        raise context.refusal(node, "its attention mask depends on the tokens")
    tables = [_table([mask.trials[index] for mask in masks], trial, heads) for index, trial in enumerate(context.trials)]
    found = []
    for table in tables:
        if table is None:
            raise context.refusal(node, f"its attention mask has dims {[list(mask.trials[0].shape) for mask in masks]}, which is not known")
        found.append(_window(context, node, table))
    windows = {window for window in found if window is not None}
    longest = max(range(len(tables)), key=lambda index: context.trials[index].length)
    if len(windows) > 1 or (windows and found[longest] is None):
        raise context.refusal(node, f"its attention mask shows windows of {sorted(windows)} at different lengths")
    slopes = _slopes(context, node, tables[0], heads)  # type: ignore[arg-type]
    for table in tables[1:]:
        other = _slopes(context, node, table, heads)  # type: ignore[arg-type]
        if not torch.allclose(other, slopes, rtol=1e-4, atol=1e-6):
            raise context.refusal(node, "its attention bias grows differently at different lengths")
    return Meaning(windows.pop() if windows else None, slopes if bool(slopes.any()) else None)


def _table(masks: list[Tensor], trial: Trial, heads: int) -> Tensor | None:
    """The sum of masks, [batch or 1, heads or 1, length, length]; None if their dims do not fit."""
    full = (trial.batch, heads, trial.length, trial.length)
    total = torch.zeros(1, 1, trial.length, trial.length)
    for mask in masks:
        if mask.dim() == 3 and mask.shape[0] == trial.batch * heads:
            mask = mask.reshape(trial.batch, heads, *mask.shape[1:])
        if mask.dim() > 4 or any(size not in (1, whole) for size, whole in zip(mask.shape[::-1], full[::-1], strict=False)):
            return None
        total = total + mask.float()
    return total


def _window(context: "ImportContext", node: NodeProto, table: Tensor) -> int | None:
    """The window of a causal mask, None if it shows all earlier tokens."""
    length = table.shape[-1]
    visible = table > HIDDEN
    if not bool((visible == visible[:1, :1]).all()):
        raise context.refusal(node, "its attention mask differs between sequences or heads")
    shown = visible[0, 0]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    if bool(shown[distance < 0].any()):
        raise context.refusal(node, f"its tokens see later ones, as an encoder's do; only decoders can be compiled ({_drawn(shown)})")
    seen = int(shown[-1].sum())
    if torch.equal(shown, (distance >= 0) & (distance < seen)):
        return seen if seen < length else None
    raise context.refusal(node, f"its attention mask is neither causal nor a sliding window: {_drawn(shown)}")


def _drawn(shown: Tensor) -> str:
    rows = ("".join("x" if one else "." for one in row[:8].tolist()) for row in shown[:8])
    return f"row by row, x for what is seen: {' '.join(rows)}"


def _slopes(context: "ImportContext", node: NodeProto, table: Tensor, heads: int) -> Tensor:
    """[heads]: what a bias grows by from one key to the next; a constant a row does nothing in a softmax."""
    length = table.shape[-1]
    distance = torch.arange(length) - torch.arange(length)[:, None]  # key - query
    own = table.diagonal(dim1=-2, dim2=-1)[..., None]
    bias = torch.where(table > HIDDEN, table - own, 0.0)
    slopes = bias[0, :, 1, 0].neg().expand(heads)
    if not bool(bias.any()):
        return slopes
    expected = torch.where(table > HIDDEN, slopes[:, None, None] * distance, 0.0)
    if not torch.allclose(bias, expected.expand_as(bias), rtol=1e-4, atol=_TOLERANCE * length):
        raise context.refusal(node, "its attention bias is not proportional to the distance between tokens")
    return slopes
