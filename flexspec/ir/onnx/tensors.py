"""Element types of ONNX as PyTorch's."""

import torch
from onnx import TensorProto

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


def dtype_of(element_type: int) -> torch.dtype:
    """The PyTorch type of an ONNX element type.

    Raises:
        UsageError: if PyTorch has none.
    """
    if element_type not in DTYPES:
        raise UsageError(f"element type {TensorProto.DataType.Name(element_type)} is not supported")
    return DTYPES[element_type]
