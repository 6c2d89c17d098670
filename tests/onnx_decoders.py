"""Small ONNX decoders as exporters write them, each part in one of several forms."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

VOCAB, HIDDEN, HEADS, KV_HEADS, SIZE, LAYERS, TABLE = 96, 32, 4, 2, 8, 2, 64
LIMIT = 100

# What is before the layers: x [batch, length, hidden], mask [.., length, length] and, with rotary embedding, cos and sin.
_SHAPES = """
shape = Shape(input_ids)
rows = Gather(shape, i0)
columns = Gather(shape, i1)
b = Unsqueeze(rows, a0)
s = Unsqueeze(columns, a0)
x0 = Gather(table, input_ids)
"""
_COUNTED = "counted = Range(i0, columns, i1)\npositions = Unsqueeze(counted, a0)\n"
_FROM_MASK = "summed = CumSum(attention_mask, i1)\npositions = Sub(summed, i1)\n"
_AFTER_PAST = "past_shape = Shape(past_0_key)\npast = Gather(past_shape, i2)\n"
_KEYS = "keys = Range(i0, columns, i1)\n"
_KEYS_AFTER_PAST = "total = Add(past, columns)\nkeys = Range(i0, total, i1)\n"
_QUERIES = "queries = Range(i0, columns, i1)\nquery_column = Unsqueeze(queries, a1)\n"
_QUERIES_AFTER_PAST = "queries = Range(past, total, i1)\nquery_column = Unsqueeze(queries, a1)\n"
_CAUSAL = "seen = LessOrEqual(keys, query_column)\n"
_WINDOW = """
earlier = LessOrEqual(keys, query_column)
first = Sub(query_column, window)
near = Greater(keys, first)
seen = And(earlier, near)
"""
_CHUNKS = """
earlier = LessOrEqual(keys, query_column)
key_chunk = Div(keys, window)
query_chunk = Div(query_column, window)
together = Equal(key_chunk, query_chunk)
seen = And(earlier, together)
"""
_BOTH_SIDES = "seen = LessOrEqual(keys, total_column)\n"
_BLOCKS = """
key_block = Div(keys, i3)
query_block = Div(query_column, i3)
seen = LessOrEqual(key_block, query_block)
"""
_MASK = "added = Where(seen, zero, lowest)\nmask = Unsqueeze(added, a01)\n"
_ALIBI = "keys_float = Cast<to = 1>(keys)\nbias = Mul(slopes, keys_float)\nmask = Add(bias, causal_mask)\n"
_FREQUENCIES = {
    "": "frequencies = Identity(inverse_frequencies)\n",
    "choice": """
last_position = ReduceMax<keepdims = 0>(positions)
is_long = GreaterOrEqual(last_position, limit)
slower = Div(inverse_frequencies, two)
frequencies = Where(is_long, slower, inverse_frequencies)
""",
    "branch": """
last_position = ReduceMax<keepdims = 0>(positions)
is_long = GreaterOrEqual(last_position, limit)
frequencies = If(is_long) <
    then_branch = slow () => (float[f] slower) { slower = Div(inverse_frequencies, two) },
    else_branch = fast () => (float[f] faster) { faster = Identity(inverse_frequencies) }
>
""",
}
_ROTARY = """
position_column = Unsqueeze(positions, a2)
position_float = Cast<to = 1>(position_column)
angles = Mul(position_float, frequencies)
both = Concat<axis = -1>(angles, angles)
cos3 = Cos(both)
sin3 = Sin(both)
cos = Unsqueeze(cos3, a1)
sin = Unsqueeze(sin3, a1)
"""
_ROTARY_ALONE = _ROTARY.replace("Unsqueeze(positions, a2)", "Unsqueeze(counted, a1)").replace("3, a1)", "3, a01)")
_LEARNED_ALONE = "moved = Add(counted, i2)\nplace = Gather(position_table, moved)\nx = Add(x0, place)\n"
_LEARNED = "moved = Add(positions, i2)\nplace = Gather(position_table, moved)\nx = Add(x0, place)\n"
_LAST = {
    "": "shown = Identity(last)\n",
    "slice": "shown = Slice(last, minus1, end, a1)\n",
    "pick": "minus = Neg(i1)\npicked = Gather<axis = 1>(last, minus)\nshown = Unsqueeze(picked, a1)\n",
}


def _norm(layer: str, source: str, result: str, *, rms: bool) -> str:
    """RMS norm, or layer norm as it was written before there was an operator for it."""
    p = f"{layer}{result}"
    if rms:
        return f"""
{p}_square = Pow({source}, two)
{p}_mean = ReduceMean<axes = [-1]>({p}_square)
{p}_eps = Add({p}_mean, eps)
{p}_root = Sqrt({p}_eps)
{p}_inverse = Reciprocal({p}_root)
{p}_scaled = Mul({source}, {p}_inverse)
{p} = Mul({p}_scaled, norm_weight)
"""
    return f"""
{p}_mean = ReduceMean<axes = [-1]>({source})
{p}_centred = Sub({source}, {p}_mean)
{p}_square = Pow({p}_centred, two)
{p}_variance = ReduceMean<axes = [-1]>({p}_square)
{p}_eps = Add({p}_variance, eps)
{p}_root = Sqrt({p}_eps)
{p}_scaled = Div({p}_centred, {p}_root)
{p}_weighted = Mul({p}_scaled, norm_weight)
{p} = Add({p}_weighted, norm_bias)
"""


def _turned(p: str, rotary: bool) -> str:
    if not rotary:
        return f"{p}_turned = Identity({p}_heads)\n"
    return f"""
{p}_first = Slice({p}_heads, a0, half, a3)
{p}_second = Slice({p}_heads, half, end, a3)
{p}_negated = Neg({p}_second)
{p}_other = Concat<axis = -1>({p}_negated, {p}_first)
{p}_straight = Mul({p}_heads, cos)
{p}_crossed = Mul({p}_other, sin)
{p}_turned = Add({p}_straight, {p}_crossed)
"""


def _heads(p: str, source: str, weight: str, count: str) -> str:
    return f"""
{p}_linear = MatMul({source}, {weight})
{p}_dims = Concat<axis = 0>(b, s, {count}, size)
{p}_split = Reshape({p}_linear, {p}_dims)
{p}_heads = Transpose<perm = [0, 2, 1, 3]>({p}_split)
"""


def _repeated(p: str, source: str) -> str:
    return f"""
{p}_five = Unsqueeze({source}, a2)
{p}_wide_dims = Concat<axis = 0>(b, kv_heads, groups, minus1, size)
{p}_lengths = Shape({source})
{p}_keys = Gather({p}_lengths, a2)
{p}_expand_dims = Concat<axis = 0>(b, kv_heads, groups, {p}_keys, size)
{p}_wide = Expand({p}_five, {p}_expand_dims)
{p}_flat_dims = Concat<axis = 0>(b, heads, {p}_keys, size)
{p}_repeated = Reshape({p}_wide, {p}_flat_dims)
"""


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a decoder is written.

    Attributes:
        rotary: rotary embedding and RMS norms; otherwise learned positions, offset 2, and layer norms.
        positions: where they come from: `counted`, `alone` (counted, and without a batch until they meet the tokens), `mask` (its sum) or
            `input`.
        mask: `causal`, `window`, `alibi`, or what must be refused: `both sides`, `blocks`, `chunks`, `none`.
        window: tokens of a window or a chunk.
        by_length: how the rotary embedding of texts longer than `LIMIT` is another: `choice`, `branch` or not at all.
        cache: with past and present.
        softcap: of the scores.
        split_scale: queries and keys are scaled by the fourth root each, rather than the scores.
        last: logits of the last token alone: `slice` or `pick` (and a new dim), "" for all tokens.
    """

    rotary: bool = True
    positions: str = "counted"
    mask: str = "causal"
    window: int = 5
    by_length: str = ""
    cache: bool = False
    softcap: bool = False
    split_scale: bool = False
    last: str = ""


def decoder_text(form: Form) -> str:
    """The graph in ONNX's text form, of opset 17."""
    cache = [f"float[batch, {KV_HEADS}, past, {SIZE}] past_{layer}_{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    present = [f"float[batch, {KV_HEADS}, total, {SIZE}] present_{layer}_{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    inputs = ["int64[batch, length] input_ids"]
    inputs += ["int64[batch, total] attention_mask"] if form.positions == "mask" else []
    inputs += ["int64[batch, length] position_ids"] if form.positions == "input" else []
    inputs += cache if form.cache else []
    outputs = [f"float[batch, length, {VOCAB}] logits", *(present if form.cache else [])]
    body = (
        _SHAPES
        + {"counted": _COUNTED, "alone": _COUNTED, "mask": _FROM_MASK, "input": "positions = Identity(position_ids)\n"}[form.positions]
    )
    body += (_AFTER_PAST + _KEYS_AFTER_PAST + _QUERIES_AFTER_PAST) if form.cache else (_KEYS + _QUERIES)
    body += "total_column = Mul(columns, i1)\n"
    body += {"window": _WINDOW, "chunks": _CHUNKS, "both sides": _BOTH_SIDES, "blocks": _BLOCKS}.get(form.mask, _CAUSAL)
    body += _MASK.replace("mask =", "causal_mask =") + _ALIBI if form.mask == "alibi" else _MASK
    is_alone = form.positions == "alone"
    rotary, learned = (_ROTARY_ALONE, _LEARNED_ALONE) if is_alone else (_ROTARY, _LEARNED)
    body += _FREQUENCIES[form.by_length] + rotary + "x = Identity(x0)\n" if form.rotary else learned
    source = "x"
    for layer in range(LAYERS):
        body += _layer(form, f"l{layer}_", source, layer)
        source = f"l{layer}_out"
    body += _norm("", source, "last", rms=form.rotary) + _LAST[form.last]
    body += "turned_table = Transpose<perm = [1, 0]>(table)\nlogits = MatMul(shown, turned_table)\n"
    return f'<ir_version: 8, opset_import: ["" : 17]>\ndecoder ({", ".join(inputs)}) => ({", ".join(outputs)}) {{\n{body}}}'


def _layer(form: Form, p: str, source: str, layer: int) -> str:
    body = _norm(p, source, "before", rms=form.rotary)
    body += _heads(f"{p}q", f"{p}before", "wq", "heads") + _turned(f"{p}q", form.rotary)
    body += _heads(f"{p}k", f"{p}before", "wk", "kv_heads") + _turned(f"{p}k", form.rotary)
    body += _heads(f"{p}v", f"{p}before", "wv", "kv_heads")
    for kind, value in (("key", f"{p}k_turned"), ("value", f"{p}v_heads")):
        present = f"present_{layer}_{kind}"
        body += f"{present} = Concat<axis = 2>(past_{layer}_{kind}, {value})\n" if form.cache else f"{present} = Identity({value})\n"
        body += _repeated(f"{p}{kind}", present)
    body += f"{p}kt = Transpose<perm = [0, 1, 3, 2]>({p}key_repeated)\n"
    if form.split_scale:
        body += f"{p}qs = Mul({p}q_turned, fourth)\n{p}ks = Mul({p}kt, fourth)\n{p}scaled = MatMul({p}qs, {p}ks)\n"
    else:
        body += f"{p}product = MatMul({p}q_turned, {p}kt)\n{p}scaled = Div({p}product, root)\n"
    if form.softcap:
        body += f"{p}low = Div({p}scaled, cap)\n{p}bent = Tanh({p}low)\n{p}capped = Mul({p}bent, cap)\n"
    scores = f"{p}capped" if form.softcap else f"{p}scaled"
    body += f"{p}masked = Identity({scores})\n" if form.mask == "none" else f"{p}masked = Add({scores}, mask)\n"
    return (
        body
        + f"""
{p}probabilities = Softmax<axis = -1>({p}masked)
{p}unknown = IsNaN({p}probabilities)
{p}clean = Where({p}unknown, zero, {p}probabilities)
{p}mixed = MatMul({p}clean, {p}value_repeated)
{p}back = Transpose<perm = [0, 2, 1, 3]>({p}mixed)
{p}joined_dims = Concat<axis = 0>(b, s, minus1)
{p}joined = Reshape({p}back, {p}joined_dims)
{p}attended = MatMul({p}joined, wo)
{p}middle = Add({source}, {p}attended)
{_norm(p, f"{p}middle", "after", rms=form.rotary)}
{p}gate = MatMul({p}after, wg)
{p}sigmoid = Sigmoid({p}gate)
{p}active = Mul({p}gate, {p}sigmoid)
{p}up = MatMul({p}after, wu)
{p}gated = Mul({p}active, {p}up)
{p}down = MatMul({p}gated, wd)
{p}out = Add({p}middle, {p}down)
"""
    )


def _constants(form: Form) -> dict[str, Any]:
    random = np.random.default_rng(0)

    def weight(*shape: int, scale: float = 0.4) -> Any:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    floats = {
        "zero": 0.0,
        "lowest": np.finfo(np.float32).min,
        "two": 2.0,
        "eps": 1e-6,
        "cap": 2.0,
        "root": SIZE**0.5,
        "fourth": SIZE**-0.25,
    }
    integers = {"i0": 0, "i1": 1, "i2": 2, "i3": 3, "window": form.window, "limit": LIMIT}
    lists = {"a0": [0], "a1": [1], "a2": [2], "a3": [3], "a01": [0, 1], "half": [SIZE // 2], "end": [2**63 - 1], "minus1": [-1]}
    lists |= {"heads": [HEADS], "kv_heads": [KV_HEADS], "groups": [HEADS // KV_HEADS], "size": [SIZE]}
    return {
        "table": weight(VOCAB, HIDDEN, scale=1.0),
        "position_table": weight(TABLE, HIDDEN, scale=1.0),
        "wq": weight(HIDDEN, HEADS * SIZE),
        "wk": weight(HIDDEN, KV_HEADS * SIZE),
        "wv": weight(HIDDEN, KV_HEADS * SIZE),
        "wo": weight(HEADS * SIZE, HIDDEN),
        "wg": weight(HIDDEN, 2 * HIDDEN),
        "wu": weight(HIDDEN, 2 * HIDDEN),
        "wd": weight(2 * HIDDEN, HIDDEN),
        "norm_weight": 1 + weight(HIDDEN),
        "norm_bias": weight(HIDDEN),
        "inverse_frequencies": (100.0 ** -(np.arange(SIZE // 2) * 2 / SIZE)).astype(np.float32),
        "slopes": np.array([0.5, 0.25, 0.125, 0.0625], dtype=np.float32).reshape(1, HEADS, 1, 1),
        **{name: np.float32(value) for name, value in floats.items()},
        **{name: np.int64(value) for name, value in integers.items()},
        **{name: np.array(value, dtype=np.int64) for name, value in lists.items()},
    }


def decoder(form: Form) -> onnx.ModelProto:
    """The decoder as a model whose weights are in the message."""
    model = onnx.parser.parse_model(decoder_text(form))
    branches = [attribute.g.node for node in model.graph.node for attribute in node.attribute]
    used = {name for nodes in (model.graph.node, *branches) for node in nodes for name in node.input}
    for name, value in _constants(form).items():
        if name in used:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    """The file that the model was written to."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    return path


def reference_logits(model: onnx.ModelProto, token_ids: Any) -> Any:
    """What onnx's own evaluator gives for token ids [batch, length]: no padding, no cache."""
    batch, length = token_ids.shape
    known = {
        "input_ids": token_ids,
        "attention_mask": np.ones((batch, length), dtype=np.int64),
        "position_ids": np.arange(length).repeat(batch).reshape(length, batch).T.astype(np.int64),
    }
    empty = np.zeros((batch, KV_HEADS, 0, SIZE), dtype=np.float32)
    given = {one.name: known.get(one.name, empty) for one in model.graph.input}
    return ReferenceEvaluator(model).run(["logits"], given)[0]
