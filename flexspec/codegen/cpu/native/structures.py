"""ctypes mirrors of the C structures in kernels/abi.h, field by field."""

import ctypes
from ctypes import Structure, c_double, c_float, c_int32, c_int64, c_void_p

ROWS = {"tokens": 0, "outputs": 1}
ACTIVATIONS = {
    name: number
    for number, name in enumerate((None, "silu", "gelu", "gelu_tanh", "relu", "clamped_swish", "tanh", "sigmoid", "relu_squared", "expm1"))
}
NORMS = {"rms": 0, "layer": 1}
PROLOGUES = {None: 0, "rms": 1, "layer": 2, "gate": 3}
ELEMENTWISE = {
    name: number
    for number, name in enumerate(
        ("gate", "activation", "add", "mul", "add_scalar", "mul_scalar", "copy", "clamp", "sub", "div", "greater", "where")
    )
}


class CMatrix(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64))


class CEmbedding(Structure):
    _fields_ = (("out", CMatrix), ("table", c_void_p), ("cols", c_int32))


class CLinear(Structure):
    _fields_ = (
        *((name, CMatrix) for name in ("x", "up", "out", "residual")),
        *((name, c_void_p) for name in ("weight", "bias", "norm_weight", "norm_bias")),
        ("eps", c_float),
        *((name, c_int32) for name in ("in_features", "out_features", "activation", "prologue", "prologue_activation", "rows")),
    )


class CNormalize(Structure):
    _fields_ = (
        ("x", CMatrix),
        ("out", CMatrix),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("eps", c_float),
        *((name, c_int32) for name in ("kind", "cols", "groups", "rows")),
    )


class CAttention(Structure):
    _fields_ = (
        *((name, CMatrix) for name in ("q", "k", "v", "out", "cos", "sin")),
        ("slopes", c_void_p),
        ("sinks", c_void_p),
        ("scale", c_float),
        ("softcap", c_float),
        *((name, c_int32) for name in ("num_heads", "num_kv_heads", "head_dim", "layer", "window")),
        *((name, c_int32) for name in ("rotary_dim", "interleaved")),
    )


class CMap(Structure):
    _fields_ = (
        *((name, CMatrix) for name in ("a", "b", "c", "out")),
        ("scalar", c_float),
        ("high", c_float),
        *((name, c_int32) for name in ("kind", "activation", "cols", "b_cols", "rows")),
    )


class CGather(Structure):
    _fields_ = (("x", CMatrix), ("out", CMatrix), ("cols", c_int32))


class CTopExperts(Structure):
    _fields_ = (
        *((name, CMatrix) for name in ("logits", "weights", "ids")),
        *((name, c_int32) for name in ("num_experts", "top_k", "normalised", "rows")),
    )


class CExperts(Structure):
    _fields_ = (
        *((name, CMatrix) for name in ("x", "ids", "weights", "out")),
        *((name, c_void_p) for name in ("gate_up", "down", "gate_up_bias", "down_bias")),
        *((name, c_float) for name in ("alpha", "limit")),
        *((name, c_int32) for name in ("num_experts", "top_k", "hidden", "inner", "activation", "rows")),
    )


BATCH_ARRAYS = (
    "token_ids",
    "positions",
    "request_rows",
    "slots",
    "context_lens",
    "tail_starts",
    "tail_bits",
    "block_tables",
    "output_rows",
)


class CBatch(Structure):
    _fields_ = (
        *((name, c_void_p) for name in BATCH_ARRAYS),
        *((name, c_int32) for name in ("num_tokens", "num_outputs", "tail_words", "blocks_per_request")),
    )


class CCache(Structure):
    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_slots", c_int64),
        *((name, c_int32) for name in ("num_kv_heads", "padded_head_dim", "block_size")),
    )


TOP_COLUMNS_ARRAYS = ("temperatures", "fewest", "most", "peaks", "bounds", "ids", "scores")


class CTopColumns(Structure):
    _fields_ = (
        ("values", c_void_p),
        ("stride", c_int64),
        ("token_ids", c_void_p),
        *((name, c_void_p) for name in TOP_COLUMNS_ARRAYS),
        ("capacity", c_int64),
        ("spread", c_double),
        ("rows", c_int32),
        ("cols", c_int32),
    )


APPEND_ARGUMENTS: dict[str, type[ctypes.Structure]] = {
    "embedding": CEmbedding,
    "linear": CLinear,
    "normalize": CNormalize,
    "attention": CAttention,
    "map": CMap,
    "gather": CGather,
    "top_experts": CTopExperts,
    "experts": CExperts,
}
