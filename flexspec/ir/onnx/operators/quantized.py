"""Weights quantised in blocks, dequantised when the graph is imported."""

from collections.abc import Sequence

import torch
from onnx import NodeProto
from torch import Tensor

from flexspec.ir.onnx.context import ImportContext
from flexspec.ir.onnx.operators.rules import check_shape, last_dim, only_attributes, outputs, positive_int
from flexspec.ir.onnx.registry import MICROSOFT, operator
from flexspec.ir.onnx.tensor_bytes import unpack_nibbles
from flexspec.ir.onnx.values import Value

_aten = torch.ops.aten
_BITS = (4, 8)


@operator(MICROSOFT, "MatMulNBits")
def matmul_nbits(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """x [..., K] times a weight of 4 or 8 bits, [N, blocks, bytes] with scales [N, blocks] and zero points; [..., N]."""
    only_attributes(context, node, {"K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked"})
    if context.attribute(node, "weight_prepacked", 0):
        raise context.refusal(node, "its weight is packed for one device (weight_prepacked); export it without")
    x, bits = context.input(node, 0), context.attribute(node, "bits", 4)
    if bits not in _BITS:
        raise context.refusal(node, f"its weights have {bits} bits; 4 and 8 are supported")
    columns, rows, block = (positive_int(context, node, name) for name in ("K", "N", "block_size"))
    if block < 16 or block & (block - 1):
        raise context.refusal(node, f"its block_size is {block}; it must be a power of 2 from 16")
    if last_dim(context, node, x, "its input") != columns:
        raise context.refusal(node, f"its input has shape {list(x.trials[0].shape)}, but its weight takes {columns} columns")
    weight = context.constant(context.once(node, lambda: _nbits_weight(context, node, rows, columns, block, bits)))
    bias = context.optional(node, 5)
    if bias is not None:
        check_shape(context, node, bias, [rows], "bias")
    return outputs(node, context.call(_aten.linear.default, x, weight, bias))


def _nbits_weight(context: ImportContext, node: NodeProto, rows: int, columns: int, block: int, bits: int) -> Tensor:
    """The weight [rows, columns], float32."""
    blocks = -(-columns // block)
    packed = context.input(node, 1)
    check_shape(context, node, packed, [rows, blocks, block * bits // 8], "B")
    stored = context.known(node, packed)
    if stored.dtype != torch.uint8:
        raise context.refusal(node, f"B is of type {stored.dtype}; it must be uint8")
    values = _unpacked(stored, bits).float()
    scales = _per_block(context, node, context.input(node, 2), rows, blocks, "scales").float()
    zeros = _zero_points(context, node, rows, blocks, bits)
    if context.has_input(node, 4):
        return _by_group(context, node, values.flatten(1)[:, :columns], scales, zeros.expand(rows, blocks))
    return ((values - zeros[..., None]) * scales[..., None]).flatten(1)[:, :columns].contiguous()


def _by_group(context: ImportContext, node: NodeProto, values: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Dequantised with a scale for each column's group instead of its block."""
    groups = context.known(node, context.input(node, 4)).long()[: values.shape[1]]
    if groups.shape != values.shape[1:] or bool(((groups < 0) | (groups >= scales.shape[1])).any()):
        raise context.refusal(node, f"g_idx must give each of {values.shape[1]} columns one of {scales.shape[1]} groups")
    return (values - zeros[:, groups]) * scales[:, groups]


def _zero_points(context: ImportContext, node: NodeProto, rows: int, blocks: int, bits: int) -> Tensor:
    """[rows, blocks], or [1, 1] for the middle of the range; float32."""
    zeros = context.optional(node, 3)
    if zeros is None:
        return torch.full((1, 1), float(1 << (bits - 1)))
    if context.known(node, zeros).dtype != torch.uint8:
        return _per_block(context, node, zeros, rows, blocks, "zero_points").float()
    packed = _per_block(context, node, zeros, rows, -(-blocks * bits // 8), "zero_points")
    return _unpacked(packed, bits)[:, :blocks].float()


def _per_block(context: ImportContext, node: NodeProto, value: Value, rows: int, width: int, name: str) -> Tensor:
    """A constant [rows, width], which older exporters write flat."""
    tensor = context.known(node, value)
    if tuple(tensor.shape) not in ((rows, width), (rows * width,)):
        raise context.refusal(node, f"{name} has shape {list(tensor.shape)}; it must have [{rows}, {width}]")
    return tensor.reshape(rows, width)


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    return unpack_nibbles(packed) if bits == 4 else packed


@operator(MICROSOFT, "GatherBlockQuantized")
def gather_block_quantized(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """Rows of a table [rows, columns] with a scale and a zero point for each block of columns, by the tokens."""
    only_attributes(context, node, {"bits", "block_size", "gather_axis", "quantize_axis"})
    bits, block = context.attribute(node, "bits", 4), positive_int(context, node, "block_size", 128)
    if bits not in _BITS or context.attribute(node, "gather_axis", 0) != 0 or context.attribute(node, "quantize_axis", 1) not in (1, -1):
        raise context.refusal(node, "it must look up rows of 4 or 8 bits in blocks of columns (gather_axis 0, quantize_axis 1)")

    def table() -> Tensor:
        stored = context.known(node, context.input(node, 0))
        if stored.dim() != 2:
            raise context.refusal(node, f"its data has shape {list(stored.shape)}; it must be [rows, columns]")
        # Bytes hold two numbers of 4 bits each, around 8; types of 4 bits are around 0.
        packed = stored.dtype == torch.uint8 and bits == 4 and not context.has_four_bits(stored)
        values = unpack_nibbles(stored) if packed else stored
        rows, columns = values.shape
        blocks = -(-columns // block)
        scales = _per_block(context, node, context.input(node, 2), rows, blocks, "scales").float()
        zeros = torch.full((1, 1), 128.0 if stored.dtype == torch.uint8 and bits == 8 else 0.0)
        if packed:
            zeros = _zero_points(context, node, rows, blocks, bits)
        elif context.has_input(node, 3):
            zeros = _per_block(context, node, context.input(node, 3), rows, blocks, "zero_points").float()
        scales, zeros = (one.expand(rows, blocks).repeat_interleave(block, dim=1)[:, :columns] for one in (scales, zeros))
        return (values.float() - zeros) * scales

    found = context.constant(context.once(node, table))
    return outputs(node, context.call(_aten.embedding.default, found, context.input(node, 1)))


@operator("", "DequantizeLinear")
@operator(MICROSOFT, "DequantizeLinear")
def dequantize_linear(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
    """(x - zero point) * scale of a constant, with a scale for all of it, for each index along an axis, or for each block along one."""
    only_attributes(context, node, {"axis", "block_size", "output_dtype"})
    return outputs(node, context.constant(context.once(node, lambda: _dequantized(context, node))))


def _dequantized(context: ImportContext, node: NodeProto) -> Tensor:
    x, scale = context.known(node, context.input(node, 0)), context.known(node, context.input(node, 1)).float()
    zero = context.known(node, context.input(node, 2)).float() if context.has_input(node, 2) else torch.zeros_like(scale)
    if zero.shape != scale.shape:
        raise context.refusal(node, f"its zero point has shape {list(zero.shape)}; it must have the scale's, {list(scale.shape)}")
    axis, block = context.attribute(node, "axis", 1), context.attribute(node, "block_size", 0)
    if scale.numel() == 1 and not block:
        return (x.float() - zero.reshape(())) * scale.reshape(())
    if not -x.dim() <= axis < x.dim() or block < 0:
        raise context.refusal(node, f"its axis is {axis} and its block_size {block}, but x has shape {list(x.shape)}")
    axis %= x.dim()
    if block:
        expected = [*x.shape[:axis], -(-x.shape[axis] // block), *x.shape[axis + 1 :]]
        if list(scale.shape) != expected:
            raise context.refusal(node, f"its scale has shape {list(scale.shape)}; blocks of {block} along dim {axis} need {expected}")
        block = min(block, x.shape[axis])
        scale, zero = (one.repeat_interleave(block, dim=axis).narrow(axis, 0, x.shape[axis]) for one in (scale, zero))
    else:
        if list(scale.shape) != [x.shape[axis]]:
            raise context.refusal(node, f"its scale has shape {list(scale.shape)}; dim {axis} of x needs [{x.shape[axis]}]")
        scale, zero = (one.reshape([-1 if dim == axis else 1 for dim in range(x.dim())]) for one in (scale, zero))
    return (x.float() - zero) * scale
