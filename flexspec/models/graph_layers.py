"""The decoder layers of a model that is one graph, without submodules: where they end, and the graph with some of them only."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.ops import ATTENTION


def keep_graph_layers(module: fx.GraphModule, places: Sequence[int]) -> None:
    """Rewrite a graph `(input_ids, position_ids) -> logits` in place so that only its decoder layers at `places`, ascending, are left.

    Raises:
        UsageError: if its layers do not hand on one value each.
    """
    ends = _layer_ends(module.graph)
    if ends is None:
        raise UsageError("its layers can't be told apart, because they do not hand on one value each: give another drafter than prune:K")
    before = ends[0]
    for place, end in enumerate(ends[1:]):
        if place in places:
            before = end
        else:
            end.replace_all_uses_with(before)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    used = {str(node.target) for node in module.graph.find_nodes(op="get_attr")}
    for name, _ in [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]:
        if name not in used:
            delattr(module, name)
    module.recompile()


def _layer_ends(graph: fx.Graph) -> list[fx.Node] | None:
    """What the embedding and then each layer hands on: the residual stream. None if more than that is handed on."""
    sequence = _of_tokens(graph)
    cuts = _cuts(sequence)
    attentions = [place for place, node in enumerate(sequence) if node.target == ATTENTION]
    ends = [max((cut for cut in cuts if cut < place), default=-1) for place in attentions]
    if not ends or ends[0] < 0 or len(set(ends)) < len(ends):
        return None
    # The last layer ends where it is like another one; a single one, before what is left of it: the norm and the head.
    known = {_form(sequence, start, end) for start, end in pairwise(ends)}
    last = next((cut for cut in cuts if cut > attentions[-1] and _form(sequence, ends[-1], cut) in known), None)
    if last is None and known:
        return None
    return [sequence[place] for place in (*ends, last if last is not None else cuts[-1])]


def _of_tokens(graph: fx.Graph) -> list[fx.Node]:
    """The nodes whose values, not only their sizes, depend on the token ids, in graph order."""
    (tokens,) = (node for node in graph.find_nodes(op="placeholder") if node.target == "input_ids")
    reached: dict[fx.Node, None] = {tokens: None}
    for node in graph.nodes:
        if node.target != torch.ops.aten.sym_size.int and any(arg in reached for arg in node.all_input_nodes):
            reached[node] = None
    return [node for node in reached if node.op != "output"]


def _cuts(sequence: Sequence[fx.Node]) -> list[int]:
    """The places of values that all later ones depend on by no other way."""
    index = {node: place for place, node in enumerate(sequence)}
    found, furthest = [], -1
    for place, node in enumerate(sequence):
        if furthest <= place:
            found.append(place)
        furthest = max([furthest, *(index.get(user, len(sequence)) for user in node.users if user in index or user.op == "output")])
    return found


def _form(sequence: Sequence[fx.Node], start: int, end: int) -> tuple[Any, ...]:
    return tuple(node.target for node in sequence[start + 1 : end + 1])
