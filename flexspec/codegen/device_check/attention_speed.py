"""The part that times tree attention of one layer beside PyTorch's two implementations."""

from collections.abc import Callable, Iterator

import torch

from flexspec.codegen.cuda.report.roofline import H200, attention_work, bound
from flexspec.codegen.cuda.targets import device_target
from flexspec.codegen.device_check.attempt import attempt, describe
from flexspec.codegen.device_check.attention_case import AttentionCase, Call
from flexspec.codegen.device_check.clock import graph_seconds, micro
from flexspec.codegen.device_check.numerics.trial import largest_error
from flexspec.codegen.device_check.part import Context, Row

_ERROR_BOUND = 2.0**-6
"""Between implementations that round weights and results to bfloat16 in their own ways."""
_OURS, _OURS_8_BITS, _SDPA, _FLEX = "tree_attention", "tree_attention, fp8 cache", "scaled_dot_product_attention", "flex_attention"
_FLEX_COMPILATIONS = 64


def attention_rows(context: Context) -> Iterator[Row]:
    """A row for each context, tree and implementation; FlexAttention's last, which takes seconds to compile for each."""
    sizes = context.sizes
    float8 = device_target(context.device).cache_float8
    cases = [(length, nodes) for length in sizes.layer_contexts for nodes in sizes.layer_trees]
    for length, nodes in cases:
        if context.has_time(f"{_OURS} and {_SDPA}, context {length}, {nodes} nodes"):
            case = AttentionCase(context, sizes.layer, nodes=nodes, length=length)
            yield attempt(_head(_OURS, case), lambda case=case: _measure(context, case, case.ours))  # type: ignore[misc]
            yield from _rival(context, _SDPA, case, case.scaled_dot_product)
        if float8 is not None and context.has_time(f"{_OURS_8_BITS}, context {length}, {nodes} nodes"):
            case = AttentionCase(context, sizes.layer, nodes=nodes, length=length, cache_dtype=float8)
            yield attempt(_head(_OURS_8_BITS, case), lambda case=case: _measure(context, case, case.ours))  # type: ignore[misc]
    # The largest first: they say most.
    for length, nodes in reversed(cases):
        if context.has_time(f"{_FLEX}, context {length}, {nodes} nodes"):
            case = AttentionCase(context, sizes.layer, nodes=nodes, length=length)
            with torch._dynamo.config.patch(recompile_limit=_FLEX_COMPILATIONS):
                yield from _rival(context, _FLEX, case, case.flex)


def _rival(context: Context, name: str, case: AttentionCase, make: Callable[[], list[Call]]) -> Iterator[Row]:
    """The row of another implementation. If it doesn't run, that is no failure of what is checked here."""
    try:
        yield _head(name, case) | _measure(context, case, make)
    except Exception as problem:  # Whatever keeps it from running is noted.
        context.leave_out(f"{name}, context {case.length}, {case.nodes} nodes", describe(problem))


def _head(name: str, case: AttentionCase) -> Row:
    return {
        "implementation": name,
        "context": case.length,
        "nodes": case.nodes,
        "splits": case.shape.num_splits if name.startswith(_OURS) else None,
    }


def _measure(context: Context, case: AttentionCase, make: Callable[[], list[Call]]) -> Row:
    """Times, as shares of what the chip needs for bytes and operations alone, whatever an implementation does besides."""
    calls = make()
    error = largest_error(calls[0](), case.expected())
    seconds = graph_seconds(context, calls)
    work = attention_work(context.sizes.layer, tokens=case.nodes, context=case.length, cache_bytes=case.cache_dtype.itemsize)
    is_known = not context.is_dry and H200.name in torch.cuda.get_device_name(context.device)
    floor = bound(work, H200).seconds if is_known else None
    return {
        "µs": micro(seconds),
        "GB/s": None if seconds is None else round(work.moved_bytes / seconds / 1e9, 1),
        "floor µs": micro(floor),
        "share of floor": None if seconds is None or floor is None else round(floor / seconds, 3),
        "error": error,
        "ok": error <= _ERROR_BOUND,
    }
