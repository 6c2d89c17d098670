"""The table of ONNX operators that can be imported; an operator family is one file under `operators/`.

An importer takes the node and gives one `Value` for each of its outputs, or None for an output that it can't give (a cache): the graph is
refused only if something reads that. It computes with `context.call(aten operator, values and numbers)` and nothing else:

    @operator("", "Relu")
    def relu(context: ImportContext, node: NodeProto) -> Sequence[Value | None]:
        return [context.call(torch.ops.aten.relu.default, context.input(node, 0))]
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onnx import NodeProto

from flexspec.ir.onnx.values import Value

if TYPE_CHECKING:
    from flexspec.ir.onnx.context import ImportContext

Importer = Callable[["ImportContext", NodeProto], Sequence[Value | None]]

MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""

OPERATOR_ERRORS = (RuntimeError, IndexError, TypeError, ValueError, KeyError, ZeroDivisionError, NotImplementedError)
"""What an importer, or PyTorch below it, raises where a node's inputs do not fit."""

OPERATORS: dict[tuple[str, str], Importer] = {}
"""By domain ("" is ONNX's own) and name."""


def operator(domain: str, *names: str) -> Callable[[Importer], Importer]:
    """Enter a function into `OPERATORS` as the importer of the operators called `names`."""

    def enter(importer: Importer) -> Importer:
        for name in names:
            assert (domain, name) not in OPERATORS, f"{domain}::{name} has an importer"
            OPERATORS[domain, name] = importer
        return importer

    return enter
