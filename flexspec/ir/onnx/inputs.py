"""What the inputs of an ONNX graph are: tokens, positions, an attention mask, a cache."""

from collections.abc import Iterable, Sequence

import onnx
import torch
from onnx import TensorProto, ValueInfoProto

from flexspec.errors import UsageError
from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.tensors import dtype_of
from flexspec.ir.onnx.values import Trial, Value

_TOKENS = ("input_ids", "tokens", "token_ids", "input")
_MASKS = ("attention_mask", "mask")
_POSITIONS = ("position_ids", "positions", "cache_position")
_CACHE_WORDS = ("past", "cache", "present")
_LENGTHS = ("nonpad_kv_seqlen",)
_STARTS = ("write_indices",)
_KEPT = ("num_logits_to_keep", "logits_to_keep")
"""How many of the last tokens' logits are wanted; 0 for all."""
_MOST = 1 << 31
_INTEGERS = (TensorProto.INT64, TensorProto.INT32)


def add_inputs(context: ImportContext, graph: onnx.GraphProto) -> None:
    """Give each input of the graph a value: tokens stay an input, positions become one, the mask shows all, and the cache is empty.

    Raises:
        UsageError: if there is no input of tokens, or an input is none of these.
    """
    given = {tensor.name for tensor in graph.initializer}
    inputs = [one for one in graph.input if one.name not in given]
    tokens = _tokens(inputs)
    if tokens is None:
        names = ", ".join(f"{one.name} {_dims(one)}" for one in inputs) or "none"
        raise UsageError(
            f"model {context.model}: it has no input of token ids, integers [batch, length], such as input_ids; its inputs are {names}: "
            "only decoder-only language models can be imported"
        )
    for one in inputs:
        if any(isinstance(size, int) and not 0 <= size <= _MOST for size in _dims(one)):
            raise UsageError(f"model {context.model}: input {one.name!r} has dims {_dims(one)}: the file is damaged; export it again")
    fixed = [size for size in _dims(tokens) if isinstance(size, int)]
    if fixed:
        raise UsageError(
            f"model {context.model}: its input {tokens.name!r} has the fixed dims {_dims(tokens)}; "
            "export it again with a dynamic batch and a dynamic length"
        )
    for one in inputs:
        context.values[one.name] = context.emission.token_ids if one is tokens else _other(context, one)


def _tokens(inputs: Sequence[ValueInfoProto]) -> ValueInfoProto | None:
    integers = [one for one in inputs if _type(one) in _INTEGERS and len(_dims(one)) == 2]
    for name in _TOKENS:
        for one in integers:
            if one.name.lower() == name:
                return one
    rest = [one for one in integers if one.name.lower() not in (*_MASKS, *_POSITIONS)]
    return rest[0] if len(rest) == 1 else None


def _other(context: ImportContext, one: ValueInfoProto) -> Value:
    name, dims, kind = one.name.lower(), _dims(one), _type(one)
    if name in _POSITIONS and kind in _INTEGERS and len(dims) == 2:
        return context.positions
    if name in _POSITIONS and kind in _INTEGERS and len(dims) == 1:
        return Value(tuple(torch.arange(trial.length) for trial in context.trials))
    if name in _MASKS and len(dims) == 2:
        return Value(tuple(torch.ones(trial, dtype=dtype_of(kind)) for trial in context.trials))
    if name == "use_cache_branch" and kind == TensorProto.BOOL:
        return context.constant(torch.zeros([1] * len(dims), dtype=torch.bool))
    if any(word in name for word in _CACHE_WORDS) and kind not in _INTEGERS and len(dims) >= 3:
        return Value(tuple(torch.empty(_empty_cache(dims, trial), dtype=torch.float32, device="meta") for trial in context.trials))
    if name in _LENGTHS and kind in _INTEGERS and len(dims) == 1:
        return Value(tuple(torch.full((trial.batch,), trial.length, dtype=dtype_of(kind)) for trial in context.trials))
    if (name in (*_STARTS, *_KEPT) or any(word in name for word in _CACHE_WORDS)) and kind in _INTEGERS and len(dims) <= 1:
        return context.constant(torch.zeros([size if isinstance(size, int) else 1 for size in dims], dtype=dtype_of(kind)))
    raise UsageError(
        f"model {context.model}: input {one.name!r} {dims} is not known; inputs may be input_ids, attention_mask and position_ids "
        "[batch, length], and a cache (names with past or cache)"
    )


def _empty_cache(dims: Sequence[int | str], trial: Trial) -> list[int]:
    """The first dim is the batch; of the others, those that vary are the length of what is cached."""
    return [trial.batch if index == 0 else (size if isinstance(size, int) else 0) for index, size in enumerate(dims)]


def _type(one: ValueInfoProto) -> int:
    return one.type.tensor_type.elem_type


def _dims(one: ValueInfoProto) -> list[int | str]:
    """Sizes, and names of those that vary; some exporters write a size as a name."""
    return list(_sizes(one.type.tensor_type.shape.dim))


def _sizes(dims: Iterable[onnx.TensorShapeProto.Dimension]) -> Iterable[int | str]:
    for dim in dims:
        if dim.HasField("dim_value"):
            yield dim.dim_value
        else:
            yield int(dim.dim_param) if dim.dim_param.isdecimal() else dim.dim_param
