"""Numbers in the graph of a mask that could make a long text see something else than a short one."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from flexspec.ir.evaluate import SMALL, takes_numbers
from flexspec.ir.graph import ModelGraph, fake, is_tensor
from flexspec.passes.mask_meaning import MASKED, NotUnderstood

_aten = torch.ops.aten
_END = 1 << 40  # slices without an end have one from here up
# A quotient may be small where what it was made of is not.
_BLOCKS = {"floor_divide", "remainder", "fmod", "bitwise_right_shift", "__rshift__", "floor", "trunc"}


@dataclass(frozen=True, kw_only=True)
class HiddenNumbers:
    """Those that an `Evaluation` can replace by others, and those, sizes of tensors mostly, that it can't."""

    replaceable: set[float]
    fixed: set[int]


def hidden_numbers(model: ModelGraph, nodes: Iterable[fx.Node], least: int) -> HiddenNumbers:
    """Numbers from `least` up, without sign, that nodes of a mask take.

    Raises:
        NotUnderstood: if positions are counted in blocks, whose size times a small number may be large.
    """
    replaceable: set[float] = set()
    fixed: set[int] = set()
    for node in nodes:
        if node.op == "get_attr":
            constant = model.parameter(node)
            if constant.numel() <= SMALL and constant.dtype != torch.bool:
                replaceable |= {abs(one) for one in constant.reshape(-1).tolist() if _may_hide(node, one, least)}
            continue
        if str(node.target).split(".")[-2:][0] in _BLOCKS and _is_long(node):
            raise NotUnderstood(f"its mask counts positions in blocks ({node.name}), and what longer texts see is not known")
        if takes_numbers(node):
            numbers = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, int | float) and not isinstance(one, bool)]
            replaceable |= {abs(one) for one in numbers if _may_hide(node, one, least)}
        elif node.op == "call_function" and any(_is_long(arg) for arg in node.all_input_nodes):
            fixed |= {abs(one) for one in _numbers((node.args, *node.kwargs.values())) if least <= abs(one) < _END}
    return HiddenNumbers(replaceable=replaceable, fixed=fixed)


def _may_hide(node: fx.Node, number: float, least: int) -> bool:
    """Whether a number may be one of positions, and none that masked scores get."""
    return least <= abs(number) < math.inf and (abs(number) < -MASKED or not fake(node).is_floating_point())


def _is_long(node: Any) -> bool:
    return isinstance(node, fx.Node) and is_tensor(node) and any(isinstance(dim, torch.SymInt) for dim in fake(node).shape)


def _numbers(given: Any) -> Iterator[int]:
    if type(given) is int:
        yield given
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _numbers(one)
