"""Recording what named submodules of a model return in one forward pass."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from flexspec.errors import UsageError

_EXAMPLES = 4


@contextmanager
def recorded_outputs(module: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """While the context is open, every call of a submodule in `names` appends its output (of a tuple, the first item) to its list."""
    outputs: dict[str, list[Any]] = {name: [] for name in names}
    handles = []
    for name, calls in outputs.items():

        def record(_module: nn.Module, _inputs: Any, output: Any, calls: list[Any] = calls) -> None:
            calls.append(output[0] if isinstance(output, tuple) and output else output)

        handles.append(module.get_submodule(name).register_forward_hook(record))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def check_names(module: nn.Module, names: Sequence[str], *, model: str) -> None:
    """Check that `names` are submodules of the model called `model`.

    Raises:
        UsageError: naming the first that is none, and some that are.
    """
    known = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
    for name in names:
        if name not in known:
            alike = difflib.get_close_matches(name, known, _EXAMPLES) or known[:_EXAMPLES]
            raise UsageError(
                f"model {model}: hidden state {name!r} is no submodule of {type(module).__name__}; some that it has: "
                f"{', '.join(map(repr, alike))}"
            )


def hidden_state(name: str, calls: Sequence[Any]) -> Tensor:
    """The one output that was recorded for `name`.

    Raises:
        UsageError: if the submodule was not run, was run more than once, or returned no tensor.
    """
    if len(calls) != 1:
        raise UsageError(f"hidden state {name!r}: that submodule runs {len(calls)} times in a pass; name one that runs once")
    if not isinstance(calls[0], Tensor):
        raise UsageError(f"hidden state {name!r}: that submodule returns {type(calls[0]).__name__}; name one that returns a tensor")
    return calls[0]
