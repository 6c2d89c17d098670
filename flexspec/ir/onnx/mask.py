"""What an attention mask means, found by looking at its numbers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.errors import UsageError
from flexspec.ir.onnx.lazy import LazyTensor, elements_at, sample_of
from flexspec.ir.onnx.values import Trial, Value

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

HIDDEN = -9000.0
"""From here down a number added to a score hides it; some models use -10000, and half precision can't hold less than -65504."""

_TOLERANCE = 1e-5
_AT_ONCE = 256


class MaskError(UsageError):
    """A mask means nothing that is known."""


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
    key = (heads, *(id(trial) for mask in masks for trial in mask.trials))
    if key not in context.meanings:
        # The masks are kept, so that no other ones get their ids.
        context.meanings[key] = (_meaning(context, node, masks, heads), tuple(masks))
    return context.meanings[key][0]


def _meaning(context: "ImportContext", node: NodeProto, masks: Sequence[Value], heads: int) -> Meaning:
    tables = []
    for index, trial in enumerate(context.trials):
        with context.holding(index):
            tables.append(_table([mask.trials[index] for mask in masks], trial, heads))
    if any(table is None for table in tables):
        raise context.refusal(node, f"its attention mask has dims {[list(mask.trials[0].shape) for mask in masks]}, which is not known")
    slopes: Tensor | None = None
    found: dict[int, int | None] = {}
    for table, trial in sorted(zip(tables, context.trials, strict=True), key=lambda pair: pair[1].length):
        assert table is not None
        if isinstance(table, LazyTensor):
            assert slopes is not None, "the shortest trial is held"
            found[trial.length] = far_window(context, node, table, slopes)
            continue
        found[trial.length] = _window(context, node, table)
        own = _slopes(context, node, table, heads)
        if slopes is not None and not torch.allclose(own, slopes, rtol=1e-4, atol=1e-6):
            raise mask_refusal(context, node, "its attention bias grows differently at different lengths")
        slopes = own if slopes is None else slopes
    windows = {window for window in found.values() if window is not None}
    if len(windows) > 1 or (windows and found[max(found)] is None):
        raise mask_refusal(context, node, f"its attention mask shows windows of {sorted(windows)} at different lengths")
    assert slopes is not None
    return Meaning(windows.pop() if windows else None, slopes if bool(slopes.any()) else None)


def mask_refusal(context: "ImportContext", node: NodeProto, why: str) -> MaskError:
    """The error of a mask that is no decoder's."""
    return MaskError(str(context.refusal(node, why)))


def _table(masks: list[Tensor], trial: Trial, heads: int) -> Tensor | None:
    """The sum of masks, [batch or 1, heads or 1, length, length]; None if their dims do not fit."""
    full = (trial.batch, heads, trial.length, trial.length)
    total = torch.zeros(1, 1, 1, 1).expand(1, 1, trial.length, trial.length)
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
        raise mask_refusal(context, node, "its attention mask differs between sequences or heads")
    shown = visible[0, 0]
    distance = torch.arange(length)[:, None] - torch.arange(length)
    if bool(shown[distance < 0].any()):
        raise mask_refusal(context, node, f"its tokens see later ones, as an encoder's do; only decoders can be compiled ({_drawn(shown)})")
    seen = int(shown[-1].sum())
    if torch.equal(shown, (distance >= 0) & (distance < seen)):
        return seen if seen < length else None
    raise mask_refusal(context, node, f"its attention mask is neither causal nor a sliding window: {_drawn(shown)}")


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
        raise mask_refusal(context, node, "its attention bias is not proportional to the distance between tokens")
    return slopes


def far_window(context: "ImportContext", node: NodeProto, table: Tensor, slopes: Tensor) -> int | None:
    """The window of a mask that is too large to hold, [1, heads or 1, length, length], whose bias is `slopes` [heads] * distance.

    The last token's first visible key gives the window; whether all the others see as much is looked at around its edges, around powers
    of two, and at random.
    """
    length, heads = table.shape[-1], table.shape[1]

    def visible(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        first = torch.zeros_like(query)
        bias = elements_at(table, first, head, query, key) - elements_at(table, first, head, query, query)
        expected = slopes[head % len(slopes)] * (key - query)
        rest = bias - expected
        if bool((rest.abs() > 1e-3 * expected.abs() + _TOLERANCE)[(rest > HIDDEN) & (key <= query)].any()):
            raise mask_refusal(context, node, "its attention bias is not proportional to the distance between tokens in long texts")
        return rest > HIDDEN

    hidden, seen = -1, length - 1
    while seen - hidden > 1:
        places = torch.linspace(hidden + 1, seen, _AT_ONCE).round().long()
        zeros = torch.zeros_like(places)
        shown = visible(zeros, zeros + length - 1, places)
        shown[-1] = True  # a token sees itself
        first = int(shown.int().argmax())
        hidden, seen = (int(places[first - 1]) if first else hidden), int(places[first])
        if not first:
            break
    window = length - seen
    _, head, query, key = sample_of([1, heads, length, length])
    edges = [torch.where(query - window + near >= 0, query - window + near, key) for near in (-1, 0, 1, 2)]
    for places in (key, query, *edges):
        expected = (places <= query) & (query - places < window)
        wrong = visible(head, query, places) != expected
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            does = "hides" if bool(expected[at]) else "shows"
            raise mask_refusal(
                context,
                node,
                f"its attention mask is neither causal nor a sliding window in long texts: with {window} keys seen by token {length - 1}, "
                f"it {does} key {int(places[at])} from token {int(query[at])}",
            )
    return window if window < length else None
