"""From the nodes of a graph to the instructions of a native program."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import fx

from flexspec.codegen.cpu.instruction_list import Columns, Instruction, UnsupportedOperator
from flexspec.ir.graph import ModelGraph, fake


class InstructionBuilder:
    """Appends what `rules` make of a graph's nodes, blocks unrolled, views resolved."""

    def __init__(self, model: ModelGraph, rules: Mapping[Any, "Rule"]) -> None:
        self.model, self.rules = model, rules
        self.count = 0
        self.instructions: list[Instruction] = []
        self.after_gather: set[int] = set()

    def new(self, node: fx.Node) -> Columns:
        """A fresh value of the node's shape, [tokens, cols] or [tokens, heads, dim]."""
        shape = [int(dim) for dim in fake(node).shape[1:]]
        if not 1 <= len(shape) <= 2:
            raise UnsupportedOperator(f"{node.target} of shape {list(fake(node).shape)}")
        self.count += 1
        heads = shape[0] if len(shape) == 2 else 1
        return Columns(self.count - 1, 0, heads * shape[-1], heads)

    def run(self, graph: fx.Graph, env: dict[fx.Node, Any]) -> Any:
        """Append the instructions of a graph whose placeholders are bound in `env`; the binding of its output, or a tuple."""
        for node in graph.nodes:
            if node.op == "output":
                return fx.node.map_arg(node.args[0], lambda one: env[one])
            if node in env or node.op == "placeholder":
                continue
            if node.op == "get_attr":
                env[node] = node
            elif node.op == "call_module":
                block = getattr(self.model.module, str(node.target))
                inner = {p: env.get(a, a) for p, a in zip(block.graph.find_nodes(op="placeholder"), node.args, strict=True)}
                env[node] = self.run(block.graph, inner)
            else:
                env[node] = self.call(node, env)
        raise AssertionError("a graph without an output")

    def call(self, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
        """The binding of one call's result."""
        if node.target not in self.rules:
            raise UnsupportedOperator(str(node.target))
        bound = tuple(fx.node.map_arg(arg, lambda one: env.get(one, one)) for arg in node.args)
        return self.rules[node.target](self, node, bound)

    def append(self, operation: str, node: fx.Node, inputs: dict[str, Columns], out: Columns | None = None, **options: Any) -> Columns:
        """Append one instruction; what it writes, a fresh value unless `out` is given."""
        for name, value in inputs.items():
            if not isinstance(value, Columns):
                raise UnsupportedOperator(f"{node.target} with {name} from {value}")
        out = self.new(node) if out is None else out
        if any(value.value in self.after_gather for value in inputs.values()) or operation == "gather_rows":
            self.after_gather.add(out.value)
        self.instructions.append(Instruction(operation, node, inputs, out, options))
        return out


Rule = Callable[[InstructionBuilder, fx.Node, tuple[Any, ...]], Any]
"""From a call and what its arguments are bound to, to what its result is bound to."""
