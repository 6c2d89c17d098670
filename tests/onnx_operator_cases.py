"""Small ONNX graphs, one for each way to use a fused operator, with the logits that ONNX Runtime gives for them.

The logits are in `onnx_operator_logits.npz`; `python tests/onnx_operator_cases.py` records them anew (it needs onnxruntime).
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

RECORDED = Path(__file__).with_name("onnx_operator_logits.npz")
BATCH, LENGTH, ROWS, HIDDEN = 2, 7, 20, 64
HEADS, KV_HEADS, SIZE = 4, 2, 16
KV = KV_HEADS * SIZE

# Nodes that cases begin with: x [batch, length, hidden] follows from the tokens, the rest from their number.
_BEGIN = """
x = Gather(table, input_ids)
shape = Shape(input_ids)
zero = Constant<value = int64 {0}>()
one = Constant<value = int64 {1}>()
front = Constant<value = int64[1] {0}>()
ends = Constant<value = int64[2] {0, 1}>()
rows = Gather(shape, zero)
columns = Gather(shape, one)
batched = Unsqueeze(rows, front)
long = Unsqueeze(columns, front)
counted = Range(zero, columns, one)
counted_row = Unsqueeze(counted, front)
position_ids = Expand(counted_row, shape)
total = Cast<to = 6>(columns)
less = Sub(columns, one)
less32 = Cast<to = 6>(less)
seqlens = Expand(less32, batched)
lengths = Expand(total, batched)
none32 = Sub(lengths, lengths)
ranges = Concat<axis = 0>(lengths, none32)
valid = Expand(one, shape)
valid32 = Cast<to = 6>(valid)
square = Concat<axis = 0>(long, long)
full = Expand(one, square)
later = Trilu<upper = 1>(full, one)
later_float = Cast<to = 1>(later)
lowest = Constant<value = float {-30000.0}>()
bias2 = Mul(later_float, lowest)
bias4 = Unsqueeze(bias2, ends)
later_bool = Cast<to = 9>(later)
seen = Not(later_bool)
seen_int = Cast<to = 6>(seen)
seen_batch_shape = Concat<axis = 0>(batched, square)
seen3 = Expand(seen_int, seen_batch_shape)
counted_float = Cast<to = 1>(counted)
slope = Constant<value = float[4] {0.5, 0.25, 0.125, 0.0625}>()
slope_dims = Constant<value = int64[3] {0, 2, 3}>()
slope4 = Unsqueeze(slope, slope_dims)
alibi_row = Mul(slope4, counted_float)
nothing = Sub(bias2, bias2)
alibi = Add(alibi_row, nothing)
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Nodes in ONNX's text form that make `logits` of `x`, what depends on the number of tokens, and constants.

    Constants are random floats of a size; an array is taken as it is. `recorded` are nodes of the same meaning, where ONNX Runtime runs
    only these on a CPU.
    """

    nodes: str
    constants: dict[str, tuple[int, ...] | np.ndarray] = field(default_factory=dict)
    opset: int = 21
    recorded: str | None = None


def model_of(case: Case) -> onnx.ModelProto:
    """The case as a model `input_ids [batch, length] → logits`, without the nodes that nothing reads."""
    graph = onnx.parser.parse_graph(
        "decoder (int64[B, L] input_ids) => (float[B, L, V] logits) {" + _BEGIN + case.nodes.replace("ms.", "com.microsoft.") + "}"
    )
    needed, kept = {"logits"}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    del graph.node[:]
    graph.node.extend(kept[::-1])
    draw = np.random.RandomState(0)
    for name, given in {"table": (ROWS, HIDDEN), **case.constants}.items():
        value = given if isinstance(given, np.ndarray) else draw.randn(*given).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    opsets = [onnx.helper.make_opsetid("", case.opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)


def token_ids() -> np.ndarray:
    """[batch, length]."""
    return np.random.RandomState(1).randint(0, ROWS, (BATCH, LENGTH))


def _tables(half: int) -> dict[str, np.ndarray]:
    angles = np.arange(64)[:, None] * (1.0 / 10 ** (np.arange(half) / half))
    return {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)}


def _bytes(*size: int) -> np.ndarray:
    return np.random.RandomState(2).randint(0, 256, size).astype(np.uint8)


_NORM = {"gamma": (HIDDEN,), "beta": (HIDDEN,), "bias": (HIDDEN,)}
_PROJECTIONS = {"wq": (HIDDEN, HIDDEN), "wk": (HIDDEN, KV), "wv": (HIDDEN, KV)}
_FULL = {"wq": (HIDDEN, HIDDEN), "wk": (HIDDEN, HIDDEN), "wv": (HIDDEN, HIDDEN)}
_QKV = "q = MatMul(x, wq)  k = MatMul(x, wk)  v = MatMul(x, wv)\n"
_NORMS = {
    "skip_layer_norm": Case(
        nodes="y = Neg(x) z = Sin(y) n,,, s = ms.SkipLayerNormalization<epsilon = 0.1>(x, z, gamma, beta, bias) logits = Add(n, s)",
        constants=_NORM,
    ),
    "skip_rms_norm": Case(
        nodes="z = Sin(x) n,,, s = ms.SkipSimplifiedLayerNormalization<epsilon = 0.1>(x, z, gamma, bias) logits = Add(n, s)",
        constants=_NORM,
    ),
    "simplified": Case(nodes="logits = SimplifiedLayerNormalization<axis = -1, epsilon = 0.1, stash_type = 1>(x, gamma)", constants=_NORM),
    "rms_norm": Case(nodes="logits = RMSNormalization<axis = 2, epsilon = 0.1>(x, gamma)", constants=_NORM, opset=23),
    "embed_layer_norm": Case(
        nodes="ids = Cast<to = 6>(input_ids) p = Cast<to = 6>(position_ids)"
        " n,, s = ms.EmbedLayerNormalization<epsilon = 0.1>(ids,, table, places,, gamma, beta,, p) logits = Add(n, s)",
        constants={**_NORM, "places": (64, HIDDEN)},
    ),
    "embed_layer_norm_counting": Case(
        nodes="ids = Cast<to = 6>(input_ids) seg = Sub(ids, ids)"
        " logits, unread = ms.EmbedLayerNormalization<epsilon = 0.1>(ids, seg, table, places, segments, gamma, beta)",
        constants={**_NORM, "places": (64, HIDDEN), "segments": (2, HIDDEN)},
    ),
}
_ACTIVATIONS = {
    "fast_gelu": Case(nodes="logits = ms.FastGelu(x)"),
    "fast_gelu_bias": Case(nodes="logits = ms.FastGelu(x, bias)", constants={"bias": (HIDDEN,)}),
    "bias_gelu": Case(nodes="logits = ms.BiasGelu(x, bias)", constants={"bias": (HIDDEN,)}),
    "gelu": Case(nodes="logits = ms.Gelu(x)"),
    "quick_gelu": Case(nodes="logits = ms.QuickGelu(x)"),
    "quick_gelu_silu": Case(nodes="logits = ms.QuickGelu<alpha = 1.0>(x)"),
    "fused_matmul": Case(nodes="logits = ms.FusedMatMul<alpha = 0.5, transB = 1>(x, w)", constants={"w": (5, HIDDEN)}),
    "fused_gemm": Case(
        nodes='flat = Reshape(x, rows_only) y = ms.FusedGemm<activation = "Relu", alpha = 0.5, transB = 1>(flat, w, bias)'
        " five = Constant<value = int64[1] {5}>() apart = Concat<axis = 0>(batched, long, five) logits = Reshape(y, apart)",
        constants={"w": (5, HIDDEN), "bias": (5,), "rows_only": np.array([-1, HIDDEN])},
    ),
    "einsum": Case(
        nodes='y = Einsum<equation = "...d, dhk -> ...hk">(x, w) logits = Einsum<equation = "hkm,blhk->blm">(u, y)',
        constants={"w": (HIDDEN, 3, 5), "u": (3, 5, 7)},
    ),
    "norm_of_squares": Case(
        nodes="n = ReduceL2<axes = [-1]>(x) s = ReduceSumSquare<axes = [-1]>(x) y = Div(x, n) logits = Add(y, s)", opset=17
    ),
    "activations": Case(nodes="a = HardSwish(x) b = Mish(a) c = Elu<alpha = 0.5>(b) logits = LeakyRelu<alpha = 0.2>(c)", opset=18),
    "fused_matmul_plain": Case(nodes="logits = ms.FusedMatMul(x, w)", constants={"w": (HIDDEN, 5)}),
}
_ROTATED = "r = Reshape(x, split) h = Transpose<perm = [0, 2, 1, 3]>(r)\n"
_MERGED = "\nt = Transpose<perm = [0, 2, 1, 3]>(y) logits = Reshape(t, merged)"
_SPLIT = {"split": np.array([0, 0, HEADS, SIZE]), "merged": np.array([0, 0, HIDDEN])}
_ROTARY = {
    "rotary": Case(nodes="logits = ms.RotaryEmbedding(x, position_ids, cos, sin)", constants=_tables(SIZE // 2)),
    "rotary_offset": Case(nodes="logits = ms.RotaryEmbedding<interleaved = 1>(x, front, cos, sin)", constants=_tables(SIZE // 2)),
    "rotary_partial": Case(
        nodes="logits = ms.RotaryEmbedding<num_heads = 4, rotary_embedding_dim = 8>(x, position_ids, cos, sin)", constants=_tables(4)
    ),
    "rotary_heads": Case(
        nodes=_ROTATED + "y = ms.RotaryEmbedding(h, position_ids, cos, sin)" + _MERGED, constants={**_SPLIT, **_tables(SIZE // 2)}
    ),
    "rotary_23": Case(
        nodes=_ROTATED + "y = RotaryEmbedding(h, cos, sin, position_ids)" + _MERGED, constants={**_SPLIT, **_tables(SIZE // 2)}, opset=23
    ),
    "rotary_23_rows": Case(
        nodes="c = Gather(cos, position_ids) s = Gather(sin, position_ids) logits = RotaryEmbedding<num_heads = 4, interleaved = 1,"
        " rotary_embedding_dim = 8>(x, c, s)",
        constants=_tables(4),
        opset=23,
    ),
}
_GQA = "logits,, = ms.GroupQueryAttention<num_heads = 4, kv_num_heads = 2{}>({},,, seqlens, total{})"


def _gqa(
    attributes: str = "", inputs: str = "", heads: str = "q, k, v", before: str = _QKV, **constants: tuple[int, ...] | np.ndarray
) -> Case:
    return Case(nodes=before + _GQA.format(attributes, heads, inputs), constants={**_PROJECTIONS, **constants})


_GROUPED = {
    "gqa": _gqa(),
    "gqa_scale_window": _gqa(", scale = 0.1, local_window_size = 3"),
    "gqa_softcap": _gqa(", softcap = 2.0"),
    "gqa_rotary": _gqa(", do_rotary = 1", ", cos, sin", **_tables(SIZE // 2)),
    "gqa_interleaved": _gqa(", do_rotary = 1, rotary_interleaved = 1", ", cos, sin", **_tables(SIZE // 2)),
    "gqa_smooth": _gqa(", smooth_softmax = 1"),
    "gqa_sinks": _gqa("", ",,,,, sinks", sinks=(HEADS,)),
    "gqa_norms": replace(
        _gqa(", do_rotary = 1", ", cos, sin,,,,,, gq, gk", gq=(SIZE,), gk=(SIZE,), sizes=np.array([0, 0, -1, SIZE]), **_tables(SIZE // 2)),
        recorded="q = MatMul(x, wq) k = MatMul(x, wk) v = MatMul(x, wv) qs = Reshape(q, sizes) ks = Reshape(k, sizes)"
        " qn = SimplifiedLayerNormalization<epsilon = 1e-6>(qs, gq) kn = SimplifiedLayerNormalization<epsilon = 1e-6>(ks, gk)"
        " q_wide = Shape(q) k_wide = Shape(k) qm = Reshape(qn, q_wide) km = Reshape(kn, k_wide)"
        + _GQA.format(", do_rotary = 1", "qm, km, v", ", cos, sin"),
    ),
    "gqa_alibi": _gqa("", ",,,, alibi"),
    "gqa_packed": _gqa("", "", "qkv,,", "qkv = MatMul(x, wqkv)\n", wqkv=(HIDDEN, HIDDEN + 2 * KV)),
}
_MHA = "logits = ms.MultiHeadAttention<num_heads = 4{}>({})"
_MULTI = {
    "mha_causal": Case(nodes=_QKV + _MHA.format(", unidirectional = 1", "q, k, v"), constants=_FULL),
    "mha_bias": Case(nodes=_QKV + _MHA.format(", scale = 0.2", "q, k, v, bias,, bias4"), constants={**_FULL, "bias": (3 * HIDDEN,)}),
    "mha_valid": Case(nodes=_QKV + _MHA.format("", "q, k, v,, valid32, bias4"), constants=_FULL),
    "mha_lengths": Case(nodes=_QKV + _MHA.format("", "q, k, v,, lengths, bias4"), constants=_FULL),
    "mha_seen": Case(nodes=_QKV + _MHA.format(", mask_filter_value = -30000.0", "q, k, v,, seen3"), constants=_FULL),
    "attention": Case(
        nodes="logits = ms.Attention<num_heads = 4, unidirectional = 1, scale = 0.2>(x, w, bias)",
        constants={"w": (HIDDEN, 3 * HIDDEN), "bias": (3 * HIDDEN,)},
    ),
    "attention_sizes": Case(
        nodes="logits = ms.Attention<num_heads = 4, qkv_hidden_sizes = [64, 64, 64]>(x, w, bias, valid32,, bias4)",
        constants={"w": (HIDDEN, 3 * HIDDEN), "bias": (3 * HIDDEN,)},
    ),
    "attention_ranges": Case(
        nodes="logits = ms.Attention<num_heads = 4, unidirectional = 1>(x, w, bias, ranges)",
        constants={"w": (HIDDEN, 3 * HIDDEN), "bias": (3 * HIDDEN,)},
    ),
    "attention_seen": Case(
        nodes="logits = ms.Attention<num_heads = 4, mask_filter_value = -30000.0>(x, w, bias, seen3)",
        constants={"w": (HIDDEN, 3 * HIDDEN), "bias": (3 * HIDDEN,)},
    ),
}
_ONNX = "logits = Attention<q_num_heads = 4, kv_num_heads = 2{}>(q, k, v{})"
_EINSUM = (
    "q0 = MatMul(x, wq) q = Reshape(q0, split) k0 = MatMul(x, wk) k = Reshape(k0, split) v0 = MatMul(x, wv) v = Reshape(v0, split)"
    ' scores = Einsum<equation = "bqhd,bkhd->bhqk">(q, k) masked = Add(scores, bias4) p = Softmax<axis = -1>(masked)'
    ' y = Einsum<equation = "bhqk,bkhd->bqhd">(p, v) logits = Reshape(y, merged)'
)
_BY_HEADS = (
    "kr = Reshape(k, split) vr = Reshape(v, split) kh = Transpose<perm = [0, 2, 1, 3]>(kr) vh = Transpose<perm = [0, 2, 1, 3]>(vr)\n"
)
_STANDARD = {
    "einsum_attention": Case(nodes=_EINSUM, constants={**_FULL, **_SPLIT}),
    "mha_by_heads": Case(
        nodes=_QKV + _BY_HEADS + _MHA.format(", unidirectional = 1", "q, kh, vh, bias"),
        constants={**_FULL, **_SPLIT, "bias": (3 * HIDDEN,)},
    ),
    "chunks": Case(
        nodes="parts = SplitToSequence<axis = -1>(x, half) a = SequenceAt(parts, zero) b = SequenceAt(parts, last) y = Mul(a, b)"
        " both = SequenceConstruct(y, a) logits = ConcatFromSequence<axis = -1>(both)",
        constants={"half": np.array(HIDDEN // 2), "last": np.array(-1)},
    ),
    "onnx_attention": Case(nodes=_QKV + _ONNX.format(", is_causal = 1", ""), constants=_PROJECTIONS, opset=23),
    "onnx_attention_mask": Case(nodes=_QKV + _ONNX.format(", scale = 0.2, softcap = 3.0", ", bias4"), constants=_PROJECTIONS, opset=23),
    "onnx_attention_seen": Case(nodes=_ROTATED + "y = Attention(h, h, h, seen)" + _MERGED, constants=_SPLIT, opset=23),
    "onnx_attention_alibi": Case(nodes=_QKV + _ONNX.format(", is_causal = 1", ", alibi"), constants=_PROJECTIONS, opset=23),
}
_NBITS = "logits = ms.MatMulNBits<K = 64, N = 6, bits = {}, block_size = 16{}>(x, w, scales{})"
_DEQUANTIZED = "w = DequantizeLinear<{}>(stored, scales{}) logits = MatMul(x, w)"
_INT8 = np.random.RandomState(3).randint(-128, 128, (HIDDEN, 6)).astype(np.int8)
_QUANTIZED = {
    "nbits_4": Case(nodes=_NBITS.format(4, "", ""), constants={"w": _bytes(6, 4, 8), "scales": (6, 4)}),
    "nbits_4_zeros": Case(
        nodes=_NBITS.format(4, ", accuracy_level = 1", ", zeros,, bias"),
        constants={"w": _bytes(6, 4, 8), "scales": (24,), "zeros": _bytes(12), "bias": (6,)},
    ),
    "nbits_8": Case(nodes=_NBITS.format(8, "", ", zeros"), constants={"w": _bytes(6, 4, 16), "scales": (6, 4), "zeros": _bytes(6, 4)}),
    "nbits_padded": Case(
        nodes="part = ms.FastGelu(x) cut = Slice(part, front, end, axis)"
        " logits = ms.MatMulNBits<K = 40, N = 6, bits = 4, block_size = 16>(cut, w, scales, zeros)",
        constants={"w": _bytes(6, 3, 8), "scales": (6, 3), "zeros": _bytes(6, 2), "end": np.array([40]), "axis": np.array([2])},
    ),
    "looked_up_4": Case(
        nodes="logits = ms.GatherBlockQuantized<block_size = 16, quantize_axis = 1>(w, input_ids, scales)",
        constants={"w": _bytes(ROWS, HIDDEN // 2), "scales": (ROWS, 4)},
    ),
    "looked_up_8": Case(
        nodes="logits = ms.GatherBlockQuantized<bits = 8, block_size = 32, quantize_axis = 1>(w, input_ids, scales, zeros)",
        constants={"w": _bytes(ROWS, HIDDEN), "scales": (ROWS, 2), "zeros": _bytes(ROWS, 2)},
    ),
    "dequantize": Case(
        nodes=_DEQUANTIZED.format("axis = 1", ", zeros"),
        constants={"stored": _INT8, "scales": (6,), "zeros": np.arange(6).astype(np.int8)},
    ),
    "dequantize_one": Case(nodes=_DEQUANTIZED.format("axis = 0", ""), constants={"stored": _INT8, "scales": np.array(0.1, np.float32)}),
    "dequantize_blocks": Case(
        nodes=_DEQUANTIZED.format("axis = 0, block_size = 16", ", zeros"),
        constants={"stored": _INT8, "scales": (4, 6), "zeros": np.arange(24).reshape(4, 6).astype(np.int8)},
    ),
}
_BRANCH = (
    "If(always) <then_branch = taken () => (float r) { q = Constant<value = int8 {%d}>() r = DequantizeLinear(q, half) },"
    " else_branch = other () => (float r) { r = Identity(half) }>"
)
_PICKED = {
    "picked": Case(nodes="logits = Gather<axis = 2>(x, order)", constants={"order": np.array([3, -1, -HIDDEN, 7])}),
    "repeated_by_places": Case(
        nodes="t = Transpose<perm = [2, 0, 1]>(x) u = Unsqueeze(t, ends1) w = Expand(u, twice) y = GatherND(w, places)"
        " logits = Transpose<perm = [1, 2, 0]>(y)",
        constants={"ends1": np.array([1]), "twice": np.array([1, 2, 1, 1]), "places": np.stack(np.divmod(np.arange(2 * HIDDEN), 2), -1)},
    ),
    "unknown_numbers": Case(nodes="nothing_left = Sub(x, x) y = Div(nothing_left, nothing_left) bad = IsNaN(y) logits = Where(bad, x, y)"),
    # Names in branches are the branches' own.
    "branches": Case(
        nodes=f"always = Equal(one, one) a = {_BRANCH % 3} b = {_BRANCH % 5} y = Mul(x, a) logits = Add(y, b)",
        constants={"half": np.array(0.5, np.float32)},
    ),
}
CASES = {**_PICKED, **_NORMS, **_ACTIVATIONS, **_ROTARY, **_GROUPED, **_MULTI, **_STANDARD, **_QUANTIZED}


def record() -> None:
    """Write the logits of ONNX Runtime for every case."""
    import onnxruntime

    logits = {}
    options = onnxruntime.SessionOptions()
    # Optimised, it would compute products of dequantised weights in 8 bits.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, case in CASES.items():
        model = model_of(replace(case, nodes=case.recorded or case.nodes)).SerializeToString()
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        logits[name] = session.run(None, {"input_ids": token_ids()})[0]
    np.savez_compressed(RECORDED, **logits)


if __name__ == "__main__":
    record()
