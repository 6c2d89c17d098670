"""Reading the nodes of a graph: their inputs by name, their attributes, and what is said of one that is wrong."""

from collections import ChainMap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from onnx import NodeProto

from flexspec.errors import UsageError
from flexspec.ir.onnx.tensor_bytes import tensor_value
from flexspec.ir.onnx.values import Value


class LengthError(UsageError):
    """A graph means something else in longer texts."""


class NodeReader:
    """What a node is given, by the names that its graph, or a branch of it, gives to values.

    Attributes:
        model: what messages call the model.
        path: of its file.
        opsets: version by domain; "" is ONNX's own.
        values: by name.
        sequences: the tensors of ONNX's sequences, by name.
        branches: what the branches that are read now are called, from the outermost.
    """

    def __init__(self, model: str, path: Path, opsets: Mapping[str, int]) -> None:
        self.model = model
        self.path = path
        self.opsets = opsets
        self.values: MutableMapping[str, Value | None] = {}
        self.sequences: dict[str, Sequence[Value]] = {}
        self.branches: tuple[str, ...] = ()

    @contextmanager
    def branch(self, node: NodeProto) -> Iterator[None]:
        """Within it, values are those of a node's branch, which sees what is around it; what it makes is gone afterwards."""
        outer, around = self.values, self.branches
        self.values, self.branches = ChainMap({}, outer), (*around, node.output[0])
        try:
            yield
        finally:
            self.values, self.branches = outer, around

    def has_input(self, node: NodeProto, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(node.input) and bool(node.input[index])

    def input(self, node: NodeProto, index: int) -> Value:
        """An input that must be there.

        Raises:
            UsageError: if it is not, or no value of the graph is called so.
        """
        if not self.has_input(node, index):
            raise self.refusal(node, f"its input {index} is missing")
        name = node.input[index]
        if name not in self.values:
            raise self.refusal(node, f"its input {name!r} is computed by no operator before it")
        value = self.values[name]
        if value is None:
            raise self.refusal(node, f"its input {name!r} is part of the cache, which only attention may use")
        return value

    def sequence(self, node: NodeProto, index: int) -> Sequence[Value]:
        """The tensors of an input that is a sequence.

        Raises:
            UsageError: if it is none.
        """
        if node.input[index] not in self.sequences:
            raise self.refusal(node, f"its input {node.input[index]!r} is no sequence")
        return self.sequences[node.input[index]]

    def optional(self, node: NodeProto, index: int) -> Value | None:
        """An input, or None if it is not given."""
        return self.input(node, index) if self.has_input(node, index) else None

    def attribute(self, node: NodeProto, name: str, default: Any = None) -> Any:
        """An attribute as a Python value; a string is `str`, a tensor a constant `Tensor`."""
        for attribute in node.attribute:
            if attribute.name == name:
                value = onnx.helper.get_attribute_value(attribute)
                if isinstance(value, onnx.TensorProto):
                    return tensor_value(value, self.path)
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return default

    def opset(self, domain: str = "") -> int:
        """The version of an operator set that the graph uses."""
        return self.opsets.get(domain, 1)

    def length_refusal(self, node: NodeProto, why: str) -> LengthError:
        """The error of a node whose meaning changes at some length."""
        return LengthError(str(self.refusal(node, why)))

    def refusal(self, node: NodeProto, why: str) -> UsageError:
        """The error that says what is wrong with a node."""
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return UsageError(f"model {self.model}: operator {name} (node {node.name or node.output[0]!r}): {why}")
