"""What exporters take apart is put together again."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.fusion import fused_div, fused_mul, fused_sum, permuted, reshaped
from flexspec.ir.onnx.values import Trial, Value

_aten = torch.ops.aten


@pytest.fixture
def context() -> ImportContext:
    return ImportContext("tiny", Path("tiny.onnx"), {"": 17}, (Trial(2, 3), Trial(3, 5)))


def values(context: ImportContext) -> Value:
    """Something that depends on the tokens, [batch, length, 4]."""
    table = context.constant(torch.arange(40.0).reshape(10, 4))
    return context.call(_aten.embedding.default, table, context.emission.token_ids)


def target(value: Value) -> Any:
    assert value.call is not None
    return value.call.target


def test_gelu_however_it_is_written(context: ImportContext) -> None:
    x = values(context)
    error = context.call(_aten.erf.default, fused_div(context, x, math.sqrt(2)))
    plus_one = fused_sum(context, error, 1.0)
    exact = fused_mul(context, 0.5, fused_mul(context, x, plus_one))
    assert target(exact) == _aten.gelu.default and exact.call.kwargs == {"approximate": "none"}
    cube = fused_mul(context, x, fused_mul(context, x, x))
    inner = fused_mul(context, math.sqrt(2 / math.pi), fused_sum(context, x, fused_mul(context, 0.044715, cube)))
    bent = fused_sum(context, 1.0, context.call(_aten.tanh.default, inner))
    other = fused_mul(context, fused_mul(context, x, 0.5), bent)
    assert target(other) == _aten.gelu.default and other.call.kwargs == {"approximate": "tanh"}
    wrong = fused_mul(context, fused_mul(context, x, 0.6), bent)
    assert target(wrong) == _aten.mul.Tensor


def test_silu_and_reciprocal_root(context: ImportContext) -> None:
    x = values(context)
    assert target(fused_mul(context, context.call(_aten.sigmoid.default, x), x)) == _aten.silu.default
    assert target(fused_div(context, 1.0, context.call(_aten.sqrt.default, x))) == _aten.rsqrt.default


def test_whole_numbers_are_divided_as_such(context: ImportContext) -> None:
    counted = Value((torch.arange(3), torch.arange(5)))
    assert fused_div(context, counted, 2).trials[1].tolist() == [0, 0, 1, 1, 2]


def test_repeated_heads_are_one_operator(context: ImportContext) -> None:
    x = values(context)
    wide = context.call(_aten.expand.default, context.call(_aten.unsqueeze.default, x, 3), [*x.shape, 2])
    repeated = reshaped(context, wide, [[2, 3, 8], [3, 5, 8]])
    assert target(repeated) == _aten.repeat_interleave.self_int and repeated.call.args == (x, 2, 2)


def test_views_that_cancel_out_are_none(context: ImportContext) -> None:
    x = values(context)
    assert permuted(context, permuted(context, x, [0, 2, 1]), [0, 2, 1]) is x
    assert reshaped(context, reshaped(context, x, [[6, 4], [15, 4]]), [[2, 3, 4], [3, 5, 4]]) is x
