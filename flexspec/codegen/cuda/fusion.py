"""What lies between the kernels, compiled by Inductor: one compilation a piece of a block and kind of block, for all layers.

Pieces see rows of hidden states and weights alone. All that changes from pass to pass is their number, so a piece is compiled
for one token, for the first other number, and for any number. Whole blocks would also see the sizes of bit rows, block tables and
tiles, and be compiled again and again.
"""

from typing import Any

import torch
from torch import fx
from torch.fx.passes.split_module import split_module

_LIBRARY = "flexspec_gpu."


def is_kernel(node: fx.Node) -> bool:
    """Whether a node calls one of our kernels."""
    return node.op == "call_function" and str(node.target).startswith(_LIBRARY)


def compile_between_kernels(module: fx.GraphModule) -> None:
    """Replace each block by its pieces, in order, those without kernels compiled; the graph around the blocks stays as it is."""
    compiled: Any = torch.compile  # untyped in PyTorch
    for name, block in list(module.named_children()):
        if not isinstance(block, fx.GraphModule):
            continue
        pieces = _split(block)
        for piece_name, piece in list(pieces.named_children()):
            if isinstance(piece, fx.GraphModule) and not any(map(is_kernel, piece.graph.nodes)):
                setattr(pieces, piece_name, compiled(piece, fullgraph=True))
        setattr(module, name, pieces)


def _split(block: fx.GraphModule) -> fx.GraphModule:
    """The block as submodules in a row: odd ones hold adjacent kernels, even ones what lies between."""
    part = 0
    parts: dict[fx.Node, int] = {}
    for node in block.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        part += is_kernel(node) != bool(part % 2)
        parts[node] = part
    return split_module(block, block, parts.__getitem__)
