"""What costs nothing, or a copy at most: column ranges of values."""

from typing import Any

from torch import fx

from flexspec.codegen.cpu.instruction_builder import InstructionBuilder
from flexspec.codegen.cpu.instruction_list import Columns, UnsupportedOperator
from flexspec.ir.graph import fake


def cat(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    parts, dim = (*args, 0)[:2]
    if not all(_unit(node, part, dim) for part in parts):
        raise UnsupportedOperator(f"cat of dim {dim} of {parts}")
    whole, start = b.new(node), 0
    for part in parts:
        b.append("copy", node, {"x": part}, Columns(whole.value, start, part.cols))
        start += part.cols
    return whole


def slice_columns(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x = args[0]
    dim, start, end, step = args[1:] + (0, None, None, 1)[len(args) - 1 :]
    unit = _unit(node, x, dim)
    if not unit or step != 1:
        raise UnsupportedOperator(f"slice of dim {dim}")
    start, end, _ = slice(start, end).indices(x.cols // unit)
    return Columns(x.value, x.start + start * unit, (end - start) * unit, _heads(node, dim, end - start))


def reshape(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, shape = args
    if not isinstance(x, Columns) or not 2 <= len(shape) <= 3:
        raise UnsupportedOperator(f"reshape to {list(shape)}")
    return Columns(x.value, x.start, x.cols, int(shape[1]) if len(shape) == 3 else 1)


def split(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> list[Columns]:
    x, sizes, dim = (*args, 0)[:3]
    whole = node.args[0]
    unit = _unit(whole, x, dim)
    if not unit:
        raise UnsupportedOperator(f"split of dim {dim}")
    size = x.cols // unit
    widths = [min(sizes, size - start) for start in range(0, size, sizes)] if isinstance(sizes, int) else list(sizes)
    starts = [sum(widths[:i]) for i in range(len(widths))]
    return [
        Columns(x.value, x.start + start * unit, width * unit, _heads(whole, dim, width))
        for start, width in zip(starts, widths, strict=True)
    ]


def _unit(node: Any, x: Any, dim: int) -> int:
    """Columns of one element along a dim of a value like a node's, if the elements along it follow each other in a row; else 0."""
    if not isinstance(x, Columns):
        return 0
    rank = fake(node).dim()
    if dim % rank == 1:
        return x.cols // x.heads if rank == 3 else 1
    return int(dim % rank == 2 and x.heads == 1)


def _heads(node: Any, dim: int, length: int) -> int:
    """Heads of what has so many elements along a dim of a value like a node's."""
    return length if fake(node).dim() == 3 and dim % 3 == 1 else 1


def chunk(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> list[Columns]:
    x, count, dim = (*args, 0)[:3]
    size = int(fake(node.args[0]).shape[dim])
    return split(b, node, (x, -(-size // count), dim))


def getitem(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Any:
    return args[0][args[1]]


def repartition(b: InstructionBuilder, node: fx.Node, args: tuple[Any, ...]) -> Columns:
    x, start, length = args
    if not isinstance(x, Columns):
        raise UnsupportedOperator(f"repartition of {x}")
    width = x.cols // x.heads if fake(node).dim() == 3 else 1
    return Columns(x.value, x.start + start * width, length * width, length if fake(node).dim() == 3 else 1)
