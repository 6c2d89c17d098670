import pytest
import torch
from native_cases import ACTIVATIONS, DTYPES, columns, rounded, run
from torch.nn import functional as F

from flexspec.codegen.cpu.native import GatePrologue, NativeLibrary, NativeProgram, NormPrologue, pack_linear


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "in_features", "out_features"), [(1, 64, 32), (3, 37, 45), (13, 130, 7), (25, 576, 96), (300, 150, 70)])
def test_equals_pytorch(library: NativeLibrary, dtype: torch.dtype, rows: int, in_features: int, out_features: int) -> None:
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, in_features + 3), torch.randn(out_features, in_features), torch.randn(out_features)
    residual, out = torch.randn(rows, out_features), torch.full((rows, out_features + 2), 7.0)
    program = NativeProgram(library, dtype=dtype, num_threads=2)
    packed = pack_linear(library, weight, dtype)
    program.linear(x=columns(x, 3), weight=packed, bias=bias, out=columns(out, 1, out_features), residual=columns(residual))
    run(program, rows)
    expected = residual + F.linear(rounded(x[:, 3:], dtype), rounded(weight, dtype), bias)
    torch.testing.assert_close(out[:, 1:-1], expected, rtol=1e-5, atol=1e-4)
    assert (out[:, 0] == 7).all() and (out[:, -1] == 7).all()
    assert packed.num_bytes >= weight.numel() * dtype.itemsize


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("rows", [2, 250])
def test_norm_prologue(library: NativeLibrary, dtype: torch.dtype, kind: str, rows: int) -> None:
    torch.manual_seed(0)
    cols = 151
    x, weight, norm_weight, norm_bias = torch.randn(rows, cols) + 1, torch.randn(40, cols), torch.randn(cols), torch.randn(cols)
    out = torch.empty(rows, 40)
    program = NativeProgram(library, dtype=dtype, num_threads=2)
    prologue = NormPrologue(kind=kind, weight=norm_weight, bias=norm_bias if kind == "layer" else None, eps=1e-3)
    program.linear(x=columns(x), weight=pack_linear(library, weight, dtype), bias=None, out=columns(out), prologue=prologue)
    run(program, rows)
    if kind == "rms":
        normed = F.rms_norm(x, (cols,), norm_weight, 1e-3)
    else:
        normed = F.layer_norm(x, (cols,), norm_weight, norm_bias, 1e-3)
    # A last-bit difference of the norm may round the other way in bfloat16.
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(out, F.linear(rounded(normed, dtype), rounded(weight, dtype)), rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("rows", [2, 90])
def test_gate_prologue_and_activation(library: NativeLibrary, dtype: torch.dtype, activation: str | None, rows: int) -> None:
    torch.manual_seed(0)
    gate_up, weight, out = torch.randn(rows, 2 * 101), torch.randn(33, 101) / 5, torch.empty(rows, 33)
    program = NativeProgram(library, dtype=dtype, num_threads=2)
    prologue = GatePrologue(gate=columns(gate_up, 0, 101), up=columns(gate_up, 101), activation=activation or "silu")
    packed = pack_linear(library, weight, dtype)
    program.linear(x=None, weight=packed, bias=None, out=columns(out), prologue=prologue, activation=activation)
    run(program, rows)
    gated = ACTIVATIONS[activation or "silu"](gate_up[:, :101]) * gate_up[:, 101:]
    expected = ACTIVATIONS[activation](F.linear(rounded(gated, dtype), rounded(weight, dtype)))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_instruction_set(older_library: NativeLibrary, dtype: torch.dtype) -> None:
    test_equals_pytorch(older_library, dtype, 13, 131, 45)
    test_norm_prologue(older_library, dtype, "layer", 5)


def test_output_rows(library: NativeLibrary) -> None:
    torch.manual_seed(0)
    x, gathered, weight, out = torch.randn(9, 20), torch.zeros(9, 20), torch.randn(5, 20), torch.zeros(9, 5)
    program = NativeProgram(library, dtype=torch.float32, num_threads=2)
    program.gather_rows(x=columns(x), out=columns(gathered))
    packed = pack_linear(library, weight, torch.float32)
    program.linear(x=columns(gathered), weight=packed, bias=None, out=columns(out), rows="outputs")
    picked = torch.tensor([8, 2, 2])
    run(program, 9, picked)
    torch.testing.assert_close(out[:3], F.linear(x[picked], weight), rtol=1e-5, atol=1e-5)
    assert (out[3:] == 0).all()
    out.zero_()
    run(program, 9, picked[:0])
    assert (out == 0).all()
