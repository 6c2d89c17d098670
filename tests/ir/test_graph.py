"""The container of the IR."""

import weakref

import pytest
import torch

from flexspec.ir.graph import Source, depends_on
from graph_cases import captured


def test_a_source_is_its_memory() -> None:
    tensor = torch.zeros(4, 6)
    assert Source(tensor) == Source(tensor.detach()) and hash(Source(tensor)) == hash(Source(tensor.detach()))
    different = [tensor.clone(), tensor[1:], tensor.T, tensor.view(6, 4), tensor.view(torch.int32)]
    assert all(Source(tensor) != Source(other) for other in different)
    assert Source(tensor) != tensor.data_ptr()


def test_a_source_keeps_its_memory_from_being_reused() -> None:
    tensor = torch.zeros(4)
    alive, source = weakref.ref(tensor), Source(tensor)
    del tensor
    assert alive() is not None
    del source
    assert alive() is None


def test_parameters_that_passes_add() -> None:
    model = captured("opt")[1]
    (first, *_) = model.nodes(torch.ops.aten.linear.default)
    for _ in range(2):  # names never collide
        node = model.add_parameter("made.up", torch.ones(3), before=first, origin=("made",))
        assert torch.equal(model.parameter(node), torch.ones(3)) and model.origin(node) == ("made",)
    assert model.origin(first.args[1]) == (Source(model.parameter(first.args[1])),)
    total = model.emit(torch.ops.aten.add.Tensor, (node, 1.0), before=first)
    assert list(total.meta["val"].shape) == [3]
    model.finish()  # no one uses them
    assert not [one for one in model.graph.nodes if "made" in str(one.target)]


def test_inputs_by_name() -> None:
    model = captured("opt")[1]
    assert model.placeholder("position_ids").op == "placeholder"
    with pytest.raises(KeyError, match="slots"):
        model.placeholder("slots")


def test_what_depends_on_a_value() -> None:
    model = captured("llama")[1]
    reached = depends_on(model.graph, [model.placeholder("position_ids")])
    assert model.graph.output_node() in reached
    (embedding,) = model.nodes(torch.ops.aten.embedding.default)
    assert embedding not in reached
