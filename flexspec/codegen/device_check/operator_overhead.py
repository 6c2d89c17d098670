"""The part that compares the two ways of making a kernel an operator: `custom_op`, which the runtime uses, and `triton_op`."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.combine_splits import combine_splits_kernel, combine_splits_reference, combine_splits_variants
from flexspec.codegen.cuda.kernels.variant import triton_type
from flexspec.codegen.cuda.targets import TARGETS
from flexspec.codegen.device_check.attempt import attempt, describe
from flexspec.codegen.device_check.clock import graph_seconds, host_seconds, micro
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import largest_error
from flexspec.codegen.device_check.part import Context, Row

_SHAPE = (8, 16, 32, 128)
"""Splits, tokens, heads, dims: a kernel of a few microseconds, so that the host is what takes time."""
_DTYPE = torch.bfloat16
_ERROR_BOUND = 2.0**-7
_IN_GRAPH = 50
_VARIANT = next(variant for variant in combine_splits_variants(TARGETS[0]) if variant.signature["out"] == triton_type(_DTYPE))


@torch.library.custom_op("flexspec_check::combine_custom", mutates_args=())
def _combine_custom(partial: Tensor, log_sums: Tensor, slots: Tensor) -> Tensor:
    out: Tensor = launcher("combine_splits", partial.device)(partial, log_sums, slots, _DTYPE)
    return out


@_combine_custom.register_fake
def _fake(partial: Tensor, log_sums: Tensor, slots: Tensor) -> Tensor:
    return partial.new_empty(partial.shape[1:], dtype=_DTYPE)


@torch.library.triton_op("flexspec_check::combine_triton", mutates_args=())
def _combine_triton(partial: Tensor, log_sums: Tensor, slots: Tensor) -> Tensor:
    splits, num_tokens, heads, head_dim = partial.shape
    out = partial.new_empty((num_tokens, heads, head_dim), dtype=_DTYPE)
    kernel: Any = torch.library.wrap_triton(combine_splits_kernel)
    kernel[num_tokens, heads](
        *(out, partial, log_sums, slots, splits, num_tokens, heads, head_dim // 8), **_VARIANT.constants, num_warps=_VARIANT.num_warps
    )
    return out


def overhead_rows(context: Context) -> Iterator[Row]:
    """A row for each way of calling `combine_splits`: directly, as `custom_op` and as `triton_op`."""
    generator = torch.Generator(context.device).manual_seed(8)
    partial = torch.randn(_SHAPE, generator=generator, device=context.device)
    log_sums = torch.randn(_SHAPE[:3], generator=generator, device=context.device)
    slots = torch.arange(_SHAPE[1], dtype=torch.int32, device=context.device)
    expected = combine_splits_reference(partial.cpu(), log_sums.cpu(), slots.cpu(), _DTYPE)
    direct = launcher("combine_splits", context.device)
    inputs = (partial, log_sums, slots)
    ways: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        "launcher": lambda partial, log_sums, slots: direct(partial, log_sums, slots, _DTYPE),
        "custom_op": _combine_custom,
        "triton_op": _combine_triton,
    }
    for name, combine in ways.items():
        if name == "triton_op" and context.is_dry:
            context.leave_out(name, "it launches its kernel, and a CPU has none")
        elif context.has_time(name):
            yield attempt({"way": name}, lambda name=name, combine=combine: _measure(context, name, combine, inputs, expected))  # type: ignore[misc]


def _measure(
    context: Context, name: str, combine: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: tuple[Tensor, ...], expected: Tensor
) -> Row:
    """Microseconds of the host in eager mode and, with a point-wise operator on either side, in compiled code; of the GPU in a graph."""
    partial, log_sums, slots = inputs

    def between() -> Tensor:
        return combine(partial * 1.0, log_sums, slots) + 1.0

    error = largest_error(combine(partial, log_sums, slots), expected)
    row: Row = {"eager µs": micro(host_seconds(context, lambda: combine(partial, log_sums, slots)))}
    row["compiled µs"] = None
    if name == "launcher" or context.is_dry:
        # Dynamo would take the launcher to pieces; a dry run has no compiler to measure.
        between()
    else:
        try:
            compiled: Any = torch.compile(between, fullgraph=True)
            error = max(error, largest_error(compiled() - 1.0, expected))
            row["compiled µs"] = micro(host_seconds(context, compiled))
        except Exception as problem:  # The other figures of this way are worth having.
            context.leave_out(f"{name} in compiled code", describe(problem))
    row["in a graph µs"] = micro(graph_seconds(context, [lambda: combine(partial, log_sums, slots)] * _IN_GRAPH))
    return row | {"error": error, "ok": error <= 2 * _ERROR_BOUND}
