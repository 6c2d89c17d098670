"""The container of the IR: a `torch.fx` graph whose parameters are attributes, and how passes write into it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a model's config says about its graph; passes take the number of matches they expect from it.

    `num_layers` is None for a plain module without a config; `patterns` is what `expected_patterns` found in the module;
    `max_positions` is how long a text its masks allow, None if any.
    """

    name: str
    num_layers: int | None
    vocab_size: int
    patterns: Mapping[str, int] = field(default_factory=dict)
    max_positions: int | None = None


class Source:
    """A tensor as a dictionary key: equal if it is the same memory. Holding the tensor keeps that memory from being reused."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass
class ModelGraph:
    """A model as a graph of operators.

    Attributes:
        module: the executable graph. Placeholders are its inputs, `get_attr` nodes its parameters and constants; every
            tensor-valued node carries a fake tensor in `meta["val"]`. It gives the logits alone, or a tuple of the logits and
            hidden states.
        facts: what the config says.
        notes: what each pass did, in order, for `explain` and `inspect`.
        origins: for parameters that passes made, what they were made from; models that share a module's parameters
            share what is packed from them.
    """

    module: fx.GraphModule
    facts: ModelFacts
    notes: list["PassNote"] = field(default_factory=list)
    origins: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def graph(self) -> fx.Graph:
        """The operator graph."""
        return self.module.graph

    @property
    def logits(self) -> fx.Node:
        """What the graph gives first: the logits."""
        return outputs_of(self.graph)[0]

    @property
    def hidden_states(self) -> tuple[fx.Node, ...]:
        """What the graph gives besides: the hidden states that were asked for, in that order."""
        return outputs_of(self.graph)[1:]

    def set_logits(self, logits: fx.Node) -> None:
        """Let the graph give other logits, with the same hidden states."""
        hidden = self.hidden_states
        self.graph.output_node().args = ((logits, *hidden) if hidden else logits,)

    @property
    def feature_size(self) -> int:
        """Columns of the input `features`; 0 without that input."""
        given = self.inputs("features")
        return int(fake(given[0]).shape[-1]) if given else 0

    @property
    def token_inputs(self) -> list[fx.Node]:
        """The inputs that say what a token is, apart from its position: its id, and its features if there are any."""
        return self.inputs("token_ids", "features")

    def placeholder(self, name: str) -> fx.Node:
        """The input called `name`."""
        for node in self.inputs(name):
            return node
        raise KeyError(name)

    def inputs(self, *names: str) -> list[fx.Node]:
        """Those of the graph's inputs that are called so."""
        return [node for node in self.graph.find_nodes(op="placeholder") if node.target in names]

    def nodes(self, *targets: Any) -> list[fx.Node]:
        """Calls of any of `targets`, in graph order."""
        wanted = set(targets)
        return [node for node in self.graph.nodes if node.op == "call_function" and node.target in wanted]

    def parameter(self, node: fx.Node) -> torch.Tensor:
        """The tensor behind a `get_attr` node."""
        assert node.op == "get_attr"
        owner: Any = self.module
        for part in str(node.target).split("."):
            owner = getattr(owner, part)
        assert isinstance(owner, torch.Tensor)
        return owner

    def origin(self, node: fx.Node) -> tuple[Any, ...]:
        """Identifies a parameter's contents: the memory it is in, or the parameters it was made from."""
        name = str(node.target)
        return self.origins.get(name) or (Source(self.parameter(node)),)

    def add_parameter(self, name: str, value: torch.Tensor, before: fx.Node, origin: tuple[Any, ...]) -> fx.Node:
        """A new `get_attr` node for `value`, made from what `origin` names, inserted before a node."""
        attribute = name.replace(".", "_")
        while hasattr(self.module, attribute):
            attribute += "_"
        self.module.register_buffer(attribute, value)
        self.origins[attribute] = origin
        with self.graph.inserting_before(before):
            node = self.graph.get_attr(attribute)
        # Values are float32, whatever the parameters are kept in.
        with self.fake_mode:
            node.meta["val"] = torch.empty(value.shape, dtype=torch.float32 if value.is_floating_point() else value.dtype)
        return node

    def part_of_parameter(self, node: fx.Node, dim: int, start: int, length: int, before: fx.Node) -> fx.Node:
        """A new `get_attr` node, before a node, for a part of a parameter along a dim; the part is a view of its memory."""
        part = self.parameter(node).narrow(dim, start, length)
        return self.add_parameter(f"{node.target}_{start}", part, before, ("part", dim, start, length, self.origin(node)))

    @property
    def fake_mode(self) -> FakeTensorMode:
        """The mode that the graph's fake tensors belong to."""
        for node in self.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch._subclasses.FakeTensor):
                return value.fake_mode
        raise AssertionError("the graph has no fake tensors")

    def emit(self, target: Callable[..., Any], args: tuple[Any, ...], before: fx.Node, kwargs: dict[str, Any] | None = None) -> fx.Node:
        """A new call of `target`, inserted before a node, with its fake result."""
        with self.graph.inserting_before(before):
            node = self.graph.call_function(target, args, kwargs or {})
        infer(node, self.fake_mode)
        return node

    def finish(self) -> None:
        """Drop what is no longer used, check the graph, and rebuild its Python code."""
        self.graph.eliminate_dead_code()
        for node in self.graph.find_nodes(op="get_attr"):
            if not node.users:
                self.graph.erase_node(node)
        used = {str(node.target) for node in self.graph.find_nodes(op="get_attr")}
        for name, _ in list(self.module.named_buffers(recurse=False, remove_duplicate=False)):
            if name not in used:
                delattr(self.module, name)
        self.graph.lint()
        self.module.recompile()


@dataclass(frozen=True, kw_only=True)
class PassNote:
    """What a pass found: its name, its matches, and how many it had to find."""

    name: str
    matches: int
    expected: int


def outputs_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """What a graph gives, one value or a tuple of several."""
    result: Any = graph.output_node().args[0]
    return result if isinstance(result, tuple) else (result,)


def infer(node: fx.Node, mode: FakeTensorMode) -> None:
    """Set the fake result of a call from the fake values of its arguments."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
    assert callable(node.target)
    with mode:
        if node.target == torch.ops.aten.linear.default:  # PyTorch 2.11 takes symbolic sizes of three dims for constants
            tensors: Any = args[:2]
            x, weight = tensors
            node.meta["val"] = x.new_empty((*x.shape[:-1], *weight.shape[:-1]))
        else:
            node.meta["val"] = node.target(*args, **kwargs)


def fake(node: Any) -> torch.Tensor:
    """The fake tensor of a tensor-valued node."""
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


def expression(dim: Any) -> Any:
    """A dim of a fake tensor for comparison: comparing a symbolic one itself would be a fact about all shapes from then on."""
    return dim.node.expr if isinstance(dim, torch.SymInt) else dim


def is_tensor(node: Any) -> bool:
    """Whether an argument is a tensor-valued node."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)


def needed_for(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes that any of `nodes` is computed from, these included."""
    reached: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += node.all_input_nodes
    return reached


def depends_on(graph: fx.Graph, sources: Iterable[fx.Node]) -> set[fx.Node]:
    """All nodes whose value depends on any of `sources`, these included."""
    reached = set(sources)
    for node in graph.nodes:
        if any(arg in reached for arg in node.all_input_nodes):
            reached.add(node)
    return reached
