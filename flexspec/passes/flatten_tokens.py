"""Flat tokens: batch and sequence become one leading dim of N tokens.

The graph is traced with symbolic batch and sequence; the runtime feeds N flat tokens of many requests. Here every value
gets its two token dims folded into one leading dim, so that [batch, tokens, …], [tokens, batch, …], [batch * tokens, …] and
[batch, heads, tokens, head_dim] all become [N, …], and the transposes and views between them disappear.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelGraph, expression, fake, infer, is_tensor
from flexspec.ir.ops import ATTENTION, ROUTED_EXPERTS

_aten = torch.ops.aten
_VIEWS = {
    _aten.view.default,
    _aten.reshape.default,
    _aten._unsafe_view.default,
    _aten.flatten.using_ints,
    _aten.unflatten.int,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
}
_PERMUTATIONS = {_aten.transpose.int, _aten.permute.default}
_ONE_DIM = {
    _aten.slice.Tensor: 1,
    _aten.split.Tensor: 2,
    _aten.split_with_sizes.default: 2,
    _aten.chunk.default: 2,
    _aten.select.int: 1,
    _aten.unbind.int: 1,
    _aten.repeat_interleave.self_int: 2,
    _aten.gather.default: 1,
    _aten.scatter.value: 1,
    _aten.scatter.src: 1,
}
# Where the dim is among the arguments, of operators whose dim is the last one unless they say otherwise.
_LAST_DIM = {_aten.topk.default: 2, _aten.sort.default: 1, _aten.max.dim: 1}
# Where one dim or a list of dims is.
_OF_DIMS = {
    _aten.mean.dim: 1,
    _aten.sum.dim_IntList: 1,
    _aten.amax.default: 1,
    _aten.amin.default: 1,
    _aten.softmax.int: 1,
    _aten._softmax.default: 1,
    _aten.log_softmax.int: 1,
    _aten._log_softmax.default: 1,
    _aten.logsumexp.default: 1,
    _aten.var.correction: 1,
    _aten.var.dim: 1,
    _aten.std.correction: 1,
    _aten.std.dim: 1,
    _aten.linalg_vector_norm.default: 2,
    _aten.norm.ScalarOpt_dim: 2,
    _aten.cumsum.default: 1,
    _aten.flip.default: 1,
    _aten.roll.default: 2,
}
# They work on a token's own row whatever dims lead, as long as what comes after the first `n` tensors is not per token.
_ROW_WISE: dict[Any, int] = {
    _aten.linear.default: 1,
    _aten.matmul.default: 1,
    _aten.mm.default: 1,
    _aten.addmm.default: 2,
    _aten.layer_norm.default: 1,
    _aten.rms_norm.default: 1,
    _aten.embedding.default: 2,
    _aten.to.dtype: 1,
    _aten._to_copy.default: 1,
    _aten.zeros_like.default: 1,
    _aten.ones_like.default: 1,
    _aten.full_like.default: 1,
    ATTENTION: 3,
    ROUTED_EXPERTS: 3,
}
_DEPENDS = (
    "its result depends on the batch size or the sequence length; a module that counts positions itself should take them instead: "
    "forward(input_ids, position_ids), both [batch, tokens]"
)
_ELEMENT_WISE = {
    _aten.embedding.default,
    _aten.to.dtype,
    _aten._to_copy.default,
    _aten.zeros_like.default,
    _aten.ones_like.default,
    _aten.full_like.default,
}


class _Layout:
    """Where the token dims of a captured value are."""

    def __init__(self, value: torch.Tensor, batch: Any, length: Any) -> None:
        dims = [expression(dim) for dim in value.shape]
        self.shape, self.rank = list(value.shape), len(dims)
        self.token_dims: tuple[int, ...] = ()
        self.batch_first = True
        if dims.count(batch) == dims.count(length) == 1:
            first, second = dims.index(batch), dims.index(length)
            self.token_dims, self.batch_first = (min(first, second), max(first, second)), first < second
        elif dims[:1] == [batch * length]:
            self.token_dims = (0,)
        self.rest = [value.shape[k] for k in range(self.rank) if k not in self.token_dims]
        self.static = all(isinstance(dim, int) for dim in self.rest)

    def sections(self) -> list[int]:
        """How many elements of a token there are before, between and behind the token dims."""
        bounds = [-1, *self.token_dims, self.rank]
        return [math.prod(self.shape[first + 1 : second]) for first, second in pairwise(bounds)]

    def flat_dim(self, dim: int) -> int:
        """Where a dim of the captured value is in the flat one."""
        dim %= self.rank
        if not self.token_dims:
            return dim
        return 0 if dim in self.token_dims else 1 + sum(k not in self.token_dims for k in range(dim))


def flatten_tokens(model: ModelGraph) -> int:
    """Rewrite the graph to `(token_ids [N], position_ids [N]) -> logits [N, vocab]`; features and hidden states become [N, …] too.

    Returns:
        How many operators the flat graph has.

    Raises:
        UsageError: naming the node, if an operator mixes tokens or moves them in a way that is not understood.
    """
    flattener = _Flattener(model)
    for node in list(model.graph.nodes):
        flattener.visit(node)
    model.module = fx.GraphModule(model.module, flattener.graph)
    model.finish()
    return sum(node.op == "call_function" for node in model.graph.nodes)


class _Flattener:
    def __init__(self, model: ModelGraph) -> None:
        self.name = model.facts.name
        self.mode = model.fake_mode
        shape = fake(model.placeholder("position_ids")).shape
        self.batch, self.length = expression(shape[0]), expression(shape[1])
        self.num_tokens = shape[1]
        self.graph = fx.Graph()
        self.flat: dict[fx.Node, fx.Node] = {}
        self.length_first: set[fx.Node] = set()  # of what is [tokens * batch, …]

    def visit(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            self.flat[node] = self.graph.placeholder(str(node.target))
            with self.mode:
                self.flat[node].meta["val"] = torch.empty((self.num_tokens, *self._layout(node).rest), dtype=fake(node).dtype)
        elif node.op == "get_attr":
            self.flat[node] = self.graph.get_attr(str(node.target))
            self.flat[node].meta["val"] = node.meta["val"]
        elif node.op == "output":
            self.graph.output(self._mapped(node.args[0]))
        elif isinstance(node.meta.get("val"), torch.Tensor | list | tuple):
            self.flat[node] = self._call(node)
            self._check(node)
            if is_tensor(node) and self._layout(node).token_dims == (0,):
                orders = {self._is_batch_first(arg) for arg in node.all_input_nodes if is_tensor(arg) and self._layout(arg).token_dims}
                if len(orders) > 1:
                    raise self._refusal(node, "it broadcasts across tokens")
                if orders == {False}:
                    self.length_first.add(node)

    def _layout(self, node: Any) -> _Layout:
        return _Layout(fake(node), self.batch, self.length)

    def _is_batch_first(self, node: fx.Node) -> bool:
        layout = self._layout(node)
        return node not in self.length_first if layout.token_dims == (0,) else layout.batch_first

    def _call(self, node: fx.Node) -> fx.Node:
        args: tuple[Any, ...] = node.args
        if any(arg not in self.flat for arg in node.all_input_nodes if is_tensor(arg)):
            raise self._refusal(node, _DEPENDS)
        source = self._layout(args[0]) if args and is_tensor(args[0]) else None
        if source is None or not source.token_dims:
            return self._copy(node)
        if node.target in _VIEWS:
            return self._view(node, source)
        if node.target in _PERMUTATIONS:
            return self._permute(node, source)
        if node.target == _aten.unsqueeze.default:
            result = self._layout(node)
            return self._emit(node.target, (self.flat[args[0]], result.flat_dim(args[1])))
        if node.target == _aten.expand.default:
            result, flat = self._layout(node), self.flat[args[0]]
            if result.rank > source.rank:
                flat = self._emit(_aten.reshape.default, (flat, [-1, *(1,) * (result.rank - source.rank), *source.rest]))
            return self._emit(node.target, (flat, [-1, *result.rest]))
        if node.target == _aten.repeat.default and len(args[1]) == source.rank:
            times = [args[1][dim] for dim in range(source.rank) if dim not in source.token_dims]
            if any(args[1][dim] != 1 for dim in source.token_dims):
                raise self._refusal(node, "it works across tokens")
            return self._emit(node.target, (self.flat[args[0]], [1, *times]))
        if node.target in _ONE_DIM:
            place = _ONE_DIM[node.target]
            dim = args[place] if len(args) > place else 0
            return self._with_dims(node, source, [dim], lambda dims: (*args[:place], dims[0], *args[place + 1 :]))
        if node.target in _LAST_DIM:
            place = _LAST_DIM[node.target]
            dim = args[place] if len(args) > place else -1
            return self._with_dims(node, source, [dim], lambda dims: (*args[:place], dims[0], *args[place + 1 :]))
        if node.target in _OF_DIMS:
            place = _OF_DIMS[node.target]
            given = args[place] if len(args) > place else None
            dims = [given] if isinstance(given, int) else list(given or range(source.rank))
            return self._with_dims(
                node, source, dims, lambda new: (*args[:place], new[0] if isinstance(given, int) else new, *args[place + 1 :])
            )
        return self._copy(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        if any(arg not in self.flat for arg in node.all_input_nodes):
            raise self._refusal(node, _DEPENDS)
        if node.target == _aten.cat.default:
            tensors: Any = node.args[0]
            dim = node.args[1] if len(node.args) > 1 else 0
            assert isinstance(dim, int)
            return self._with_dims(node, self._layout(tensors[0]), [dim], lambda dims: (tensors, dims[0]))
        if node.target == _aten.stack.default:
            return self._stack(node)
        per_token = [arg for arg in node.all_input_nodes if is_tensor(arg) and self._layout(arg).token_dims]
        if per_token and torch.Tag.pointwise in getattr(node.target, "tags", ()):
            return self._pointwise(node)
        if per_token and not self._is_row_wise(node, per_token):
            raise self._refusal(node, "it is not known to work on each token alone")
        return self._emit(node.target, self._mapped(node.args), self._mapped(node.kwargs))

    def _is_row_wise(self, node: fx.Node, per_token: list[fx.Node]) -> bool:
        layouts = [self._layout(arg) for arg in per_token]
        if any(arg not in node.args[: _ROW_WISE.get(node.target, 0)] for arg in per_token):
            return False
        if node.target == ATTENTION:
            return all(layout.token_dims == (0, 1) and layout.batch_first for layout in layouts)
        return node.target in _ELEMENT_WISE or all(layout.rank - 1 not in layout.token_dims for layout in layouts)

    def _pointwise(self, node: fx.Node) -> fx.Node:
        """Operands per token line up as they are; constants lose the dims of size 1 that stand for batch and sequence."""
        result = self._layout(node)

        def operand(arg: fx.Node) -> fx.Node:
            layout = self._layout(arg)
            if layout.token_dims:
                if (layout.rank, layout.token_dims, layout.batch_first) != (result.rank, result.token_dims, result.batch_first):
                    raise self._refusal(node, "it broadcasts across tokens")
                return self.flat[arg]
            shape = list(fake(arg).shape)
            padded = [1] * (result.rank - len(shape)) + shape
            assert all(padded[dim] == 1 for dim in result.token_dims), "a constant of a symbolic size"
            rest = [size for dim, size in enumerate(padded) if dim not in result.token_dims]
            aligned = len(shape) <= len(rest) and rest[len(rest) - len(shape) :] == shape
            return self.flat[arg] if aligned else self._emit(_aten.reshape.default, (self.flat[arg], rest))

        args, kwargs = fx.node.map_arg((node.args, node.kwargs), operand)
        return self._emit(node.target, args, kwargs)

    def _with_dims(self, node: fx.Node, layout: _Layout, dims: list[int], rebuild: Any) -> fx.Node:
        if any(dim % layout.rank in layout.token_dims for dim in dims):
            raise self._refusal(node, "it works across tokens")
        args = rebuild([layout.flat_dim(dim) for dim in dims])
        return self._emit(node.target, self._mapped(args), self._mapped(node.kwargs))

    def _stack(self, node: fx.Node) -> fx.Node:
        """The new dim may be anywhere behind the tokens."""
        tensors: Any = node.args[0]
        layout, result = self._layout(tensors[0]), self._layout(node)
        given = node.args[1] if len(node.args) > 1 else 0
        assert isinstance(given, int)
        dim = given % result.rank
        if layout.token_dims != result.token_dims or dim in result.token_dims:
            raise self._refusal(node, "it works across tokens")
        return self._emit(node.target, (self._mapped(tensors), result.flat_dim(dim)))

    def _view(self, node: fx.Node, source: _Layout) -> fx.Node:
        result = self._layout(node)
        flat = self.flat[node.args[0]]  # type: ignore[index]
        if not result.token_dims or not result.static or not self._keeps_tokens(node, source, result):
            raise self._refusal(node, "it reshapes across tokens")
        return flat if list(fake(flat).shape[1:]) == result.rest else self._emit(_aten.reshape.default, (flat, [-1, *result.rest]))

    def _keeps_tokens(self, node: fx.Node, source: _Layout, result: _Layout) -> bool:
        """Whether a view moves no element from one side of a token dim to the other."""
        given = node.args[0]
        assert isinstance(given, fx.Node)
        if len(source.token_dims) == len(result.token_dims):
            return source.sections() == result.sections() and (source.token_dims == (0,) or source.batch_first == result.batch_first)
        two = source if len(source.token_dims) == 2 else result
        in_order = two is source or two.batch_first == self._is_batch_first(given)
        return in_order and two.sections()[:2] == [1, 1]

    def _permute(self, node: fx.Node, source: _Layout) -> fx.Node:
        args: tuple[Any, ...] = node.args
        order = list(range(source.rank))
        if node.target == _aten.transpose.int:
            first, second = args[1] % source.rank, args[2] % source.rank
            order[first], order[second] = order[second], order[first]
        else:
            order = [dim % source.rank for dim in args[1]]
        rest = [source.flat_dim(dim) for dim in order if dim not in source.token_dims]
        flat = self.flat[args[0]]
        return flat if rest == sorted(rest) else self._emit(_aten.permute.default, (flat, [0, *rest]))

    def _mapped(self, value: Any) -> Any:
        return fx.node.map_arg(value, lambda arg: self.flat[arg])

    def _emit(self, target: Any, args: Any, kwargs: Any = None) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs or {})
        infer(node, self.mode)
        return node

    def _check(self, node: fx.Node) -> None:
        if not is_tensor(node):
            return
        layout, flat = self._layout(node), fake(self.flat[node])
        shape = list(flat.shape[1:] if layout.token_dims else flat.shape)
        if shape != layout.rest:
            raise self._refusal(node, f"its shape {list(fake(node).shape)} can't be laid out as flat tokens")

    def _refusal(self, node: fx.Node, why: str) -> UsageError:
        return UsageError(f"model {self.name}: operator {node.name} ({node.target}) can't run on flat tokens: {why}")
