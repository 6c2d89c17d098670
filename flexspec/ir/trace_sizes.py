"""Batch size and length of the inputs that a model is traced with: tracing must tell them from every size of the model itself."""

from collections.abc import Iterator
from itertools import chain, count, islice

from torch import nn

_LEAST = 5  # a text that short fits every model


def trace_sizes(module: nn.Module) -> tuple[int, int]:
    """Batch size and length for tracing: two primes that divide no size of the module's parameters and buffers.

    Heads, their size and whatever else a module splits its dims into divide these sizes, so none of them is taken for the other: with
    five heads and five tokens, a comparison of the two would hold, and make five the only length of the graph.
    """
    sizes = {int(size) for one in chain(module.parameters(), module.buffers()) for size in one.shape}
    length, batch = islice(_primes_that_divide_none(sizes), 2)
    return batch, length


def _primes_that_divide_none(sizes: set[int]) -> Iterator[int]:
    for number in count(_LEAST, 2):
        if all(number % divisor for divisor in range(3, number, 2)) and all(size % number or size == 0 for size in sizes):
            yield number
