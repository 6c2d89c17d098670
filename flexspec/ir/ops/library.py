"""The `flexspec::` operator library and how an operator joins it."""

from collections.abc import Callable
from typing import Any

import torch

from flexspec.ir.ops.partition_rules import PartitionRule

_new_library: Callable[[str, str], Any] = torch.library.Library  # untyped in PyTorch
_LIBRARY = _new_library("flexspec", "DEF")

PARTITION_RULES: dict[Any, PartitionRule] = {}
"""How dialect operators can be divided over devices, by operator; those that are not here can't be."""


def define(
    schema: str, *, reference: Callable[..., Any], fake: Callable[..., Any], partitionings: PartitionRule | None = None
) -> torch._ops.OpOverload:
    """Register one dialect operator.

    Args:
        schema: its signature, such as `rms_norm(Tensor x, Tensor weight, float eps) -> Tensor`.
        reference: plain PyTorch implementation for every device.
        fake: gives the result's shape and dtype from fake inputs.
        partitionings: how calls of it in the flat recognised graph can be divided over devices; None: not at all.

    Returns:
        The operator, to be used as the target of a graph node.
    """
    name = schema.split("(", 1)[0]
    _LIBRARY.define(schema)
    _LIBRARY.impl(name, reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flexspec::{name}", fake, lib=_LIBRARY)
    operator: torch._ops.OpOverload = getattr(torch.ops.flexspec, name).default
    if partitionings is not None:
        PARTITION_RULES[operator] = partitionings
    return operator
