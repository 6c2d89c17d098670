"""Tensors too large to hold, such as a mask of a million tokens: single elements are computed when they are asked for.

So what a graph computes from lengths alone can be looked at at a length that no text reaches, whatever operators it is written in. What
they are for each operator is in `lazy_operators`.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

_aten = torch.ops.aten
_HELD = 1 << 16
"""Tensors of up to so many elements are computed at once."""
_COUNTED = 1 << 21
"""Operators that need all elements compute so many at the most."""
_SAMPLE = 1 << 11
_TERMS = 64
_OF_DATA = {_aten.nonzero.default, _aten._local_scalar_dense.default, _aten.equal.default, _aten.allclose.default, _aten.is_nonzero.default}

Memo = dict[tuple[int, Any], tuple[object, Tensor]]
Elements = Callable[[Tensor, Memo], Tensor]
"""From places [n], counted through all dims in order, to the elements there [n]."""


Rule = Callable[[Any, Any, Any, Any], Any]
"""From an operator, its arguments and a tensor of device `meta` like its result to the result's elements; lists for a list of results."""

RULES: dict[Any, Rule] = {}
"""By operator; an operator without one is given tensors that are held, if they are not too large."""
ANSWERS: dict[Any, Callable[..., Any]] = {}
"""By operator: what asks about all elements, answered from a sample."""


class TooLargeError(RuntimeError):
    """An operator needs more elements than can be computed."""


class Budget:
    """How many elements may be computed in all, so that a small file can't ask for more work than a large model."""

    def __init__(self, elements: int) -> None:
        self._all = self._left = elements

    def spend(self, elements: int) -> None:
        """Count elements that will be computed.

        Raises:
            TooLargeError: if there are too many.
        """
        self._left -= elements
        if self._left < 0:
            raise TooLargeError(f"computing what does not depend on the tokens takes more than {self._all} numbers")


class LazyTensor(Tensor):
    """A tensor of any size that holds nothing; whether something is so everywhere is answered from a sample."""

    elements: Elements
    budget: Budget

    @staticmethod
    def __new__(cls, shape: Sequence[int], dtype: torch.dtype, elements: Elements, budget: Budget) -> "LazyTensor":
        """A tensor whose elements at some places the function gives."""
        self: LazyTensor = torch.Tensor._make_wrapper_subclass(cls, tuple(shape), dtype=dtype, device=torch.device("cpu"))
        self.elements, self.budget = elements, budget
        return self

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Its shape, since it holds nothing else."""
        return f"LazyTensor({list(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """The operator on tensors one of which is lazy."""
        kwargs = kwargs or {}
        budget = next(one.budget for one in tree_flatten((args, kwargs))[0] if isinstance(one, LazyTensor))
        return _apply(func, args, kwargs, budget, _HELD)


class _Computing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, budget: Budget, held: int | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.budget, self.held = budget, held

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _disable_current_modes():
            return _apply(func, args, kwargs or {}, self.budget, self.held)


@contextmanager
def within(budget: Budget) -> Iterator[None]:
    """Within it, operators are computed as long as the budget allows."""
    with _Computing(budget, None):
        yield


@contextmanager
def lazily(budget: Budget) -> Iterator[None]:
    """Within it, an operator whose result would be too large to hold gives a `LazyTensor`."""
    with _Computing(budget, _HELD):
        yield


def elements_at(tensor: Tensor, *index: Tensor) -> Tensor:
    """The elements at an index a dim, each [n]."""
    with _disable_current_modes():
        return elements_of(tensor, ravelled(index, tensor.shape), {})


def sample_of(shape: Sequence[int]) -> list[Tensor]:
    """An index a dim, [n]: corners, powers of two and their neighbours, and random ones, long dims at such distances from each other."""
    draw = torch.Generator().manual_seed(0)

    def one_of(values: Tensor) -> Tensor:
        return values[torch.randint(len(values), (_SAMPLE,), generator=draw)]

    def candidates(size: int) -> Tensor:
        powers = 2 ** torch.arange(max(size.bit_length(), 1))
        fixed = torch.cat([torch.arange(4), powers - 1, powers, powers + 1, size - 1 - torch.arange(4)])
        return torch.cat([fixed, torch.randint(size, (len(fixed),), generator=draw)]).clamp(0, size - 1)

    index = [one_of(candidates(size)) for size in shape]
    long = [dim for dim, size in enumerate(shape) if size > 64]
    for first, second in itertools.pairwise(long):
        # Half of them at a chosen distance rather than at chosen places.
        near = torch.rand(_SAMPLE, generator=draw) < 0.5
        moved = (index[first] - one_of(candidates(shape[second]))).clamp(0, shape[second] - 1)
        index[second] = torch.where(near, moved, index[second])
    return index


def elements_of(tensor: Tensor, places: Tensor, memo: Memo) -> Tensor:
    if not isinstance(tensor, LazyTensor):
        return tensor[unravelled(places, tensor.shape)] if tensor.dim() else tensor.expand(len(places))
    key = (id(tensor), id(places))
    if key not in memo:
        tensor.budget.spend(len(places))
        memo[key] = ((tensor, places), tensor.elements(places, memo))
    return memo[key][1]


def unravelled(places: Tensor, shape: Sequence[int]) -> tuple[Tensor, ...]:
    index = []
    for size in reversed(shape):
        index.append(places % size)
        places = places // size
    return tuple(index[::-1])


def ravelled(index: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    places = torch.zeros_like(index[0]) if index else torch.zeros(1, dtype=torch.int64)
    for one, size in zip(index, shape, strict=True):
        places = places * size + one
    return places


def held(tensor: Tensor) -> Tensor:
    """A lazy tensor's contents."""
    if not isinstance(tensor, LazyTensor):
        return tensor
    if tensor.numel() > _COUNTED:
        raise TooLargeError(f"all elements of {list(tensor.shape)} are too many")
    return elements_of(tensor, torch.arange(tensor.numel()), {}).reshape(tuple(tensor.shape))


def _apply(func: Any, args: Any, kwargs: Any, budget: Budget, most: int | None) -> Any:
    """An operator's result; lazy if it has more elements than `most`."""
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
    is_lazy = any(isinstance(one, LazyTensor) for one in tensors)
    on_meta = any(one.is_meta for one in tensors) or torch.device(kwargs.get("device") or "cpu").type == "meta"
    if on_meta or func._schema.is_mutable or (not is_lazy and _is_view(func)):
        return func(*args, **kwargs)
    if is_lazy and func in ANSWERS:
        return ANSWERS[func](*args)
    if not is_lazy and ((size := _elements_made(func, args, kwargs)) <= _HELD or most is None):
        budget.spend(size * _terms(func, args))
        return func(*args, **kwargs)
    rule = RULES.get(func) or (RULES["pointwise"] if torch.Tag.pointwise in func.tags else None)
    if rule is None:
        args, kwargs = tree_map_only(LazyTensor, held, args), tree_map_only(LazyTensor, held, kwargs)
        budget.spend(_elements_made(func, args, kwargs))
        return func(*args, **kwargs)
    made = _on_meta(func, args, kwargs)
    found = rule(func, args, kwargs, made)
    if isinstance(made, Tensor):
        return _small_held(LazyTensor(made.shape, made.dtype, found, budget))
    return [_small_held(LazyTensor(one.shape, one.dtype, elements, budget)) for one, elements in zip(made, found, strict=True)]


def _small_held(tensor: Tensor) -> Tensor:
    return held(tensor) if tensor.numel() <= _HELD else tensor


def _is_view(func: Any) -> bool:
    return any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)


def _elements_made(func: Any, args: Any, kwargs: Any) -> int:
    if func in _OF_DATA:
        return 0
    try:
        made = tree_flatten(_on_meta(func, args, kwargs))[0]
    except NotImplementedError:  # its size depends on the elements
        return 0
    return sum(one.numel() for one in made if isinstance(one, Tensor))


def _terms(func: Any, args: Any) -> int:
    """How much work an element is, in elements of a point-wise operator."""
    return 1 + args[0].shape[-1] // _TERMS if func in (_aten.mm.default, _aten.bmm.default) else 1


def _on_meta(func: Any, args: Any, kwargs: Any) -> Any:
    def described(tensor: Tensor) -> Tensor:
        # Indices of 0 dims count as numbers, which some operators read.
        return torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="meta")

    kwargs = tree_map_only(Tensor, described, kwargs)
    if "device" in kwargs or not any(isinstance(one, Tensor) for one in tree_flatten(args)[0]):
        kwargs = {**kwargs, "device": torch.device("meta")}
    kwargs.pop("pin_memory", None)
    return func(*tree_map_only(Tensor, described, args), **kwargs)
