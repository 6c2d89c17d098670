"""Constants that are no weights: tables of cosines and sines, and ALiBi slopes, which keep their precision whatever the weights are in."""

import torch
from torch import fx, nn

from flexspec.ir.graph import depends_on
from flexspec.ir.ops import ATTENTION

_aten = torch.ops.aten
_SLOPES = 7
"""Place of the slopes among attention's arguments."""


def keep_exact(graph: fx.Graph, root: nn.Module) -> None:
    """Make parameters that are no weights buffers that are not saved, and position embeddings parameters.

    What a position gives is no weight if tokens are multiplied by it; position embeddings are added.
    """
    tokens, positions = graph.find_nodes(op="placeholder")
    from_positions = depends_on(graph, [positions])
    from_tokens = depends_on(graph, [user for user in tokens.users if user.target != _aten.sym_size.int])
    for node in graph.find_nodes(op="get_attr"):
        name, tensor = str(node.target), getattr(root, str(node.target))
        is_exact = _are_slopes(node) or _turns(node, from_positions, from_tokens)
        if isinstance(tensor, nn.Parameter) and is_exact:
            del root._parameters[name]
            root.register_buffer(name, tensor.detach(), persistent=False)
        elif not isinstance(tensor, nn.Parameter) and not is_exact and _is_table(node) and tensor.is_floating_point():
            delattr(root, name)
            root.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def _are_slopes(node: fx.Node) -> bool:
    return all(user.target == ATTENTION and user.args[_SLOPES:] == (node,) for user in node.users)


def _is_table(node: fx.Node) -> bool:
    return bool(node.users) and all(user.target == _aten.embedding.default and user.args[0] is node for user in node.users)


def _turns(node: fx.Node, from_positions: set[fx.Node], from_tokens: set[fx.Node]) -> bool:
    """Whether it is a rotary table or what makes one: only indexed by positions, only multiplied with what the tokens give."""
    waiting, seen = [node], {node}
    while waiting:
        for user in waiting.pop().users:
            if user in from_tokens:
                if user.target != _aten.mul.Tensor:
                    return False
            elif user not in from_positions:
                return False
            elif user not in seen:
                seen.add(user)
                waiting.append(user)
    return len(seen) > 1
