import math

import pytest
import torch
from native_cases import ACTIVATIONS, DTYPES, columns, run
from torch.nn import functional as F

from flexspec.codegen.cpu.native import NativeLibrary, NativeProgram


@pytest.fixture
def program(library: NativeLibrary) -> NativeProgram:
    return NativeProgram(library, dtype=torch.float32, num_threads=2)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding(library: NativeLibrary, dtype: torch.dtype) -> None:
    table, out = torch.randn(50, 37).to(dtype), torch.zeros(50, 37)
    program = NativeProgram(library, dtype=dtype, num_threads=2)
    program.embedding(table=table, out=columns(out))
    run(program, 50)
    assert torch.equal(out, table.float())


@pytest.mark.parametrize(("cols", "groups"), [(64, 1), (37, 1), (96, 12), (60, 3)])
def test_rms_norm(program: NativeProgram, cols: int, groups: int) -> None:
    x, weight = torch.randn(21, cols), torch.randn(cols // groups)
    expected = F.rms_norm(x.view(21, groups, -1), (cols // groups,), weight, 1e-4).reshape(21, cols)
    program.rms_norm(x=columns(x), weight=weight, eps=1e-4, out=columns(x), groups=groups)
    run(program, 21)
    torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cols", [64, 37])
@pytest.mark.parametrize("with_bias", [True, False])
def test_layer_norm(program: NativeProgram, cols: int, with_bias: bool) -> None:
    x, weight, bias, out = torch.randn(21, cols) + 3, torch.randn(cols), torch.randn(cols) if with_bias else None, torch.empty(21, cols)
    program.layer_norm(x=columns(x), weight=weight, bias=bias, eps=1e-4, out=columns(out))
    run(program, 21)
    torch.testing.assert_close(out, F.layer_norm(x, (cols,), weight, bias, 1e-4), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in ACTIVATIONS if kind])
def test_activations_over_the_whole_range(program: NativeProgram, kind: str) -> None:
    x = torch.linspace(-120, 120, 4001)[None].contiguous()
    out, gated, up = torch.empty_like(x), torch.empty_like(x), torch.randn_like(x)
    program.activation(x=columns(x), kind=kind, out=columns(out))
    program.gate(gate=columns(x), up=columns(up), activation=kind, out=columns(gated))
    run(program, 1)
    torch.testing.assert_close(out, ACTIVATIONS[kind](x), rtol=1e-6, atol=2e-6)
    torch.testing.assert_close(gated, ACTIVATIONS[kind](x) * up, rtol=1e-6, atol=1e-5)


def test_one_row_or_one_column_for_all(program: NativeProgram) -> None:
    a, column, row = torch.randn(5, 37), torch.randn(5, 3), torch.randn(37)
    outs = [torch.empty(5, 37) for _ in range(4)]
    program.add(a=columns(a), b=columns(column, 1, 1), out=columns(outs[0]))
    program.mul(a=columns(a), b=columns(column, 1, 1), out=columns(outs[1]))
    program.add(a=columns(a), b=row, out=columns(outs[2]))
    program.mul(a=columns(a), b=row, out=columns(outs[3]))
    run(program, 5)
    for out, expected in zip(outs, (a + column[:, 1:2], a * column[:, 1:2], a + row, a * row), strict=True):
        assert torch.equal(out, expected)


def test_expm1(program: NativeProgram) -> None:
    x = torch.cat([torch.linspace(-120, 88, 4001), torch.linspace(-0.4, 0.4, 999), torch.tensor([89.0])])[None].contiguous()
    out = torch.empty_like(x)
    program.activation(x=columns(x), kind="expm1", out=columns(out))
    run(program, 1)
    torch.testing.assert_close(out, torch.expm1(x), rtol=2e-6, atol=0)


def test_difference_quotient_and_choice(program: NativeProgram) -> None:
    a, b, row = torch.randn(5, 37), torch.randn(5, 37), torch.randn(37)
    outs = [torch.empty(5, 37) for _ in range(6)]
    program.sub(a=columns(a), b=columns(b), out=columns(outs[0]))
    program.sub(a=columns(a), b=row, out=columns(outs[1]))
    program.div(a=columns(a), b=columns(b), out=columns(outs[2]))
    program.div(a=columns(a), b=row, out=columns(outs[3]))
    program.greater(x=columns(a), value=0.2, out=columns(outs[4]))
    program.where(condition=columns(outs[4]), a=columns(a), b=columns(b), out=columns(outs[5]))
    run(program, 5)
    for out, expected in zip(outs, (a - b, a - row, a / b, a / row, (a > 0.2).float(), torch.where(a > 0.2, a, b)), strict=True):
        assert torch.equal(out, expected)


def test_clamp(program: NativeProgram) -> None:
    x = torch.randn(5, 37)
    outs = [torch.empty(5, 37) for _ in range(3)]
    bounds = [(-0.5, 0.3), (-math.inf, 0.3), (0.2, math.inf)]
    for out, (low, high) in zip(outs, bounds, strict=True):
        program.clamp(x=columns(x), low=low, high=high, out=columns(out))
    run(program, 5)
    for out, (low, high) in zip(outs, bounds, strict=True):
        assert torch.equal(out, x.clamp(low, high))


def test_arithmetic(program: NativeProgram) -> None:
    a, b = torch.randn(5, 37), torch.randn(5, 37)
    outs = [torch.empty(5, 37) for _ in range(4)]
    wide = torch.zeros(5, 50)
    program.add(a=columns(a), b=columns(b), out=columns(outs[0]))
    program.mul(a=columns(a), b=columns(b), out=columns(outs[1]))
    program.add_scalar(x=columns(a), value=0.3, out=columns(outs[2]))
    program.mul_scalar(x=columns(a), value=0.3, out=columns(outs[3]))
    program.copy(x=columns(a), out=columns(wide, 9, 37))
    run(program, 5)
    for out, expected in zip(outs, (a + b, a * b, a + 0.3, a * 0.3), strict=True):
        assert torch.equal(out, expected)
    assert torch.equal(wide[:, 9:46], a) and not wide[:, :9].any() and not wide[:, 46:].any()
