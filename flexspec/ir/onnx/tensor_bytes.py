"""The bytes of an ONNX tensor: in the model's file, or as external data in a file beside it."""

import math
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from flexspec.errors import UsageError

# Type → (bits an element, the dtype that raw bytes are read as). 4-bit types lie two to a byte, the first in the low half.
_RAW: dict[int, tuple[int, torch.dtype]] = {
    TensorProto.FLOAT: (32, torch.float32),
    TensorProto.FLOAT16: (16, torch.float16),
    TensorProto.BFLOAT16: (16, torch.bfloat16),
    TensorProto.DOUBLE: (64, torch.float64),
    TensorProto.INT64: (64, torch.int64),
    TensorProto.INT32: (32, torch.int32),
    TensorProto.INT16: (16, torch.int16),
    TensorProto.INT8: (8, torch.int8),
    TensorProto.UINT8: (8, torch.uint8),
    TensorProto.BOOL: (8, torch.bool),
    TensorProto.INT4: (4, torch.int8),
    TensorProto.UINT4: (4, torch.uint8),
}
# Types without a torch dtype of their own; they take part in computations as int64.
_WIDENED: dict[int, tuple[int, type[np.generic]]] = {
    TensorProto.UINT16: (16, np.uint16),
    TensorProto.UINT32: (32, np.uint32),
    TensorProto.UINT64: (64, np.uint64),
}
_BITS = {kind: bits for table in (_RAW, _WIDENED) for kind, (bits, _) in table.items()}
_ELEMENTS: dict[int, str] = {
    TensorProto.FLOAT: "float_data",
    TensorProto.DOUBLE: "double_data",
    TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data",
    TensorProto.UINT64: "uint64_data",
}


def check_tensor(tensor: TensorProto, path: Path) -> None:
    """Refuse a tensor whose type is unknown, whose bytes are not there, too few or too many, or lie outside the folder of `path`.

    Raises:
        UsageError: naming the tensor, and the file it should be in.
    """
    who = f"{path}: tensor {tensor.name!r}"
    bits = _BITS.get(tensor.data_type, 0)
    if not bits:
        kind = TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in TensorProto.DataType.values() else tensor.data_type
        raise UsageError(f"{who} is of type {kind}, which is not supported; {', '.join(_names())} are")
    if any(size < 0 for size in tensor.dims):
        raise UsageError(f"{who} has the shape {list(tensor.dims)}: the file is damaged; export it again")
    needed = (math.prod(tensor.dims) * bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset, length = _external(tensor, path)
        there = min(needed if length is None else length, file.stat().st_size - offset)
        if there != needed or length not in (None, needed):
            raise UsageError(
                f"{who} of shape {list(tensor.dims)} takes {needed} bytes, but {file} has {max(there, 0)} for it at {offset}"
                f"{'' if length in (None, there) else f', where {length} are said to be'}: "
                "the file is cut short or belongs to another model; export it again"
            )
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != needed:
            raise UsageError(
                f"{who} of shape {list(tensor.dims)} takes {needed} bytes, but has {len(tensor.raw_data)}: the file is damaged; "
                "export it again"
            )
    else:
        count = len(getattr(tensor, _ELEMENTS.get(tensor.data_type, "int32_data")))
        expected = needed if bits == 4 else math.prod(tensor.dims)
        if count != expected:
            raise UsageError(f"{who} of shape {list(tensor.dims)} has {count} elements: the file is damaged; export it again")


def tensor_value(tensor: TensorProto, path: Path) -> Tensor:
    """A checked tensor of the model in `path`; what lies in a file beside it is mapped, not read.

    4-bit integers come as int8 and uint8, one to an element; unsigned integers wider than 8 bits as int64.
    """
    if tensor.data_type in _WIDENED or not (tensor.HasField("raw_data") or tensor.data_location == TensorProto.EXTERNAL):
        return _from_elements(tensor, path)
    bits, dtype = _RAW[tensor.data_type]
    count = math.prod(tensor.dims)
    if not count:
        return torch.empty(tuple(tensor.dims), dtype=dtype)
    needed = (count * bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        file, offset, _ = _external(tensor, path)
        raw = torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="c", offset=offset, shape=(needed,)))
    else:
        raw = torch.frombuffer(bytearray(tensor.raw_data), dtype=torch.uint8)
    if bits == 4:
        return unpack_nibbles(raw, signed=tensor.data_type == TensorProto.INT4)[:count].reshape(tuple(tensor.dims))
    if raw.data_ptr() % (bits // 8):
        raw = raw.clone()
    return raw.view(dtype).reshape(tuple(tensor.dims))


def unpack_nibbles(raw: Tensor, *, signed: bool = False) -> Tensor:
    """4-bit integers from bytes [..., n], low half first: uint8, or int8 if `signed`, [..., 2 * n]."""
    halves = torch.stack([raw & 0xF, raw >> 4], dim=-1).flatten(-2)
    return (halves.to(torch.int8) ^ 8) - 8 if signed else halves


def _names() -> list[str]:
    return [str(TensorProto.DataType.Name(kind)) for kind in (*_RAW, *_WIDENED)]


def _from_elements(tensor: TensorProto, path: Path) -> Tensor:
    """Tensors whose elements are listed one by one, and types that have no torch dtype: small ones."""
    if tensor.data_location == TensorProto.EXTERNAL:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        onnx.external_data_helper.load_external_data_for_tensor(copy, str(path.parent))
        tensor = copy
    if tensor.data_type == TensorProto.BFLOAT16:
        return torch.tensor(list(tensor.int32_data), dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(tuple(tensor.dims))
    array = numpy_helper.to_array(tensor)
    if tensor.data_type in (TensorProto.INT4, TensorProto.UINT4):
        array = array.astype(np.int8 if tensor.data_type == TensorProto.INT4 else np.uint8)
    if tensor.data_type in _WIDENED:
        array = array.astype(np.int64)
    return torch.from_numpy(np.array(array))


def _external(tensor: TensorProto, path: Path) -> tuple[Path, int, int | None]:
    """The file beside `path` that has a tensor's bytes, where they begin and how many there are, if it says so."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    who = f"{path}: tensor {tensor.name!r}"
    location = entries.get("location", "")
    folder = path.parent.resolve()
    if "\0" in location or not location:
        raise UsageError(f"{who} does not say which file it is in: the file is damaged; export it again")
    file = (folder / location).resolve()
    if not file.is_relative_to(folder):
        raise UsageError(f"{who} is said to be in {location!r}, outside the model's folder: refused; a model's weights must lie beside it")
    if not file.is_file():
        raise UsageError(f"{who} is in {location!r}, which is missing: put that file beside {path.name}, where it was exported")
    try:
        offset, length = int(entries.get("offset", "0")), int(entries["length"]) if "length" in entries else None
    except ValueError:
        raise UsageError(f"{who}: its place in {location!r} is not a number: the file is damaged; export it again") from None
    if offset < 0 or (length is not None and length < 0):
        raise UsageError(f"{who}: its place in {location!r} is negative: the file is damaged; export it again")
    return file, offset, length
