"""The native kernels of mixtures of experts against the operators' references, bit by bit whatever shares the pass."""

import pytest
import torch
from native_cases import DTYPES, columns, rounded, run
from torch import Tensor

from flexspec.codegen.cpu.native import NativeLibrary, NativeProgram
from flexspec.codegen.cpu.native.expert_packing import pack_experts
from flexspec.ir.ops import ROUTED_EXPERTS, TOP_EXPERTS

TOKENS = 37


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(("experts", "top_k"), [(5, 2), (8, 8), (130, 6), (3, 1)])
def test_top_experts(library: NativeLibrary, experts: int, top_k: int, normalised: bool) -> None:
    logits, out = 4 * random(TOKENS, experts), torch.zeros(TOKENS, 2 * top_k)
    logits[0] = 0.0
    program = NativeProgram(library, dtype=torch.float32, num_threads=2)
    program.top_experts(logits=columns(logits), top_k=top_k, normalised=normalised, out=columns(out))
    run(program, TOKENS)
    weights, ids = TOP_EXPERTS(logits, top_k, normalised)
    torch.testing.assert_close(out[:, :top_k], weights, rtol=1e-5, atol=1e-6)
    assert torch.equal(out[1:, top_k:].long(), ids[1:])
    assert out[0, top_k:].tolist() == list(range(top_k)), "the first of equal ones"


@pytest.mark.parametrize("hostile", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_still_choose_experts(library: NativeLibrary, hostile: float) -> None:
    out = torch.zeros(2, 8)
    program = NativeProgram(library, dtype=torch.float32, num_threads=2)
    program.top_experts(logits=columns(torch.full((2, 5), hostile)), top_k=4, normalised=True, out=columns(out))
    run(program, 2)
    assert out[:, 4:].tolist() == [[0.0, 1.0, 2.0, 3.0]] * 2


class Layer:
    """Experts of sizes that fill no panel."""

    def __init__(self, library: NativeLibrary, dtype: torch.dtype, activation: str, *, hidden: int, inner: int, other_form: bool) -> None:
        self.library, self.dtype, self.activation = library, dtype, activation
        self.experts, self.hidden = 6, hidden
        self.constants = [1.7, 0.5] if activation == "clamped_swish" else []
        self.weights: dict[str, Tensor | None] = dict.fromkeys(("gate", "gate_bias", "up", "up_bias", "down", "down_bias"))
        if other_form:  # gate and up in turns, columns after columns
            both, both_biases = random(self.experts, hidden, 2 * inner, seed=1).transpose(1, 2), random(self.experts, 2 * inner, seed=3)
            gate, up, self.weights["gate_bias"], self.weights["up_bias"] = (
                both[:, ::2],
                both[:, 1::2],
                both_biases[:, ::2],
                both_biases[:, 1::2],
            )
            down, self.weights["down_bias"] = (
                random(self.experts, inner, hidden, seed=2).transpose(1, 2),
                random(self.experts, hidden, seed=4),
            )
        else:
            gate, up = random(self.experts, 2 * inner, hidden, seed=1).chunk(2, dim=1)
            down = random(self.experts, hidden, inner, seed=2)
        self.weights |= {"gate": gate / hidden**0.5, "up": up / hidden**0.5, "down": down}
        self.packed = pack_experts(library, **self.weights, dtype=dtype)  # type: ignore[arg-type]

    def expected(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        given = [one if one is None else rounded(one, self.dtype) if one.dim() == 3 else one for one in self.weights.values()]
        return ROUTED_EXPERTS(rounded(x, self.dtype), ids, weights, *given, self.activation, self.constants)

    def run(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        out = torch.full((len(x), self.hidden), float("nan"))
        program = NativeProgram(self.library, dtype=self.dtype, num_threads=2)
        program.routed_experts(
            x=columns(x),
            expert_ids=columns(ids.float()),
            expert_weights=columns(weights),
            experts=self.packed,
            activation=self.activation,
            constants=self.constants,
            out=columns(out),
        )
        run(program, len(x))
        return out


def routing(experts: int, top_k: int) -> tuple[Tensor, Tensor]:
    ids = torch.stack([torch.randperm(experts - 1, generator=torch.Generator().manual_seed(t))[:top_k] for t in range(TOKENS)])
    return ids, random(TOKENS, top_k, seed=7)  # the last expert has no tokens


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("activation", "hidden", "inner", "other_form"),
    [("silu", 37, 23, False), ("clamped_swish", 70, 51, True), ("gelu_tanh", 64, 16, False), ("relu", 9, 5, True)],
)
def test_experts(library: NativeLibrary, dtype: torch.dtype, activation: str, hidden: int, inner: int, other_form: bool) -> None:
    layer = Layer(library, dtype, activation, hidden=hidden, inner=inner, other_form=other_form)
    x = random(TOKENS, hidden, seed=5)
    for top_k in (1, 3):
        ids, weights = routing(layer.experts, top_k)
        got = layer.run(x, ids, weights)
        tolerance = 1e-4 if dtype == torch.float32 else 6e-2
        torch.testing.assert_close(got, layer.expected(x, ids, weights), rtol=tolerance, atol=tolerance)
        for rows in (slice(0, 1), slice(3, 5), slice(10, 30)):
            assert torch.equal(layer.run(x[rows].contiguous(), ids[rows], weights[rows].contiguous()), got[rows])
