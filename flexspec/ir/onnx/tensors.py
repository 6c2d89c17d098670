"""Tensors of an ONNX file as PyTorch tensors."""

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from flexspec.errors import UsageError

DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.INT64: torch.int64,
    TensorProto.INT32: torch.int32,
    TensorProto.INT16: torch.int16,
    TensorProto.INT8: torch.int8,
    TensorProto.UINT8: torch.uint8,
    TensorProto.BOOL: torch.bool,
}
# Kept as a wider type, since PyTorch computes little or nothing with these.
_WIDENED: dict[int, type[np.generic]] = {
    TensorProto.UINT16: np.int32,
    TensorProto.UINT32: np.int64,
    TensorProto.INT4: np.int8,
    TensorProto.UINT4: np.uint8,
}


def dtype_of(element_type: int) -> torch.dtype:
    """The PyTorch type of an ONNX element type.

    Raises:
        UsageError: if PyTorch has none.
    """
    if element_type not in DTYPES:
        raise UsageError(f"element type {TensorProto.DataType.Name(element_type)} is not supported")
    return DTYPES[element_type]


def to_torch(tensor: TensorProto) -> Tensor:
    """The contents of a tensor whose data is in the message itself.

    Raises:
        UsageError: if the message contradicts itself, or PyTorch has no such type.
    """
    kind = tensor.data_type
    if kind not in DTYPES and kind not in _WIDENED:
        known = TensorProto.DataType.Name(kind) if kind in TensorProto.DataType.values() else str(kind)
        raise UsageError(f"tensor {tensor.name!r} has element type {known}, which is not supported")
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, onnx.checker.ValidationError) as error:
        raise UsageError(f"tensor {tensor.name!r} of dims {list(tensor.dims)} is damaged: {error}") from error
    if kind in _WIDENED:
        return torch.from_numpy(array.astype(_WIDENED[kind]))
    if kind == TensorProto.BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
