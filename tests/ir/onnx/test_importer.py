"""Import of decoders written in several forms, compared with what onnx's own evaluator makes of the same graph."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import fx

from flexspec.errors import UsageError
from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import read_onnx
from flexspec.ir.ops import ATTENTION
from onnx_decoders import VOCAB, Form, decoder, reference_logits, saved

FORMS = {
    "counted positions": Form(),
    "learned positions": Form(rotary=False),
    "mask as input": Form(rotary=False, positions="mask"),
    "positions as input, cache": Form(positions="input", cache=True),
    "positions counted after the cache": Form(cache=True, split_scale=True),
    "window": Form(mask="window"),
    "ALiBi": Form(rotary=False, mask="alibi"),
    "soft cap": Form(softcap=True),
    "positions without a batch": Form(positions="alone"),
    "learned positions without a batch": Form(rotary=False, positions="alone"),
}


def imported(form: Form, folder: Path) -> fx.GraphModule:
    path = saved(decoder(form), folder)
    return import_graph(read_onnx(path), path=path, name="tiny", longest=40).module


def logits(module: fx.GraphModule, ids: np.ndarray) -> np.ndarray:
    positions = torch.arange(ids.shape[1]).expand(ids.shape)
    with torch.no_grad():
        return module(torch.from_numpy(ids), positions).numpy()


@pytest.mark.parametrize("name", FORMS)
def test_the_imported_graph_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    model = decoder(FORMS[name])
    module = imported(FORMS[name], tmp_path)
    for batch, length in ((1, 1), (2, 9), (3, 23)):
        ids = np.random.default_rng(length).integers(0, VOCAB, (batch, length))
        expected = reference_logits(model, ids)
        assert np.abs(logits(module, ids) - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("name", FORMS)
def test_nothing_is_left_of_mask_and_cache(name: str, tmp_path: Path) -> None:
    module = imported(FORMS[name], tmp_path)
    attentions = [node for node in module.graph.nodes if node.target == ATTENTION]
    assert [node.target for node in module.graph.find_nodes(op="placeholder")] == ["input_ids", "position_ids"]
    assert [node.meta["heads"] for node in attentions] == [(4, 2), (4, 2)]
    assert not any(node.target in (torch.ops.aten.softmax.int, torch.ops.aten.where.self) for node in module.graph.nodes)


def test_attributes_of_attention(tmp_path: Path) -> None:
    def arguments(form: Form) -> tuple[object, ...]:
        node = next(node for node in imported(form, tmp_path).graph.nodes if node.target == ATTENTION)
        return node.args[3:]

    scale = pytest.approx(8**-0.5)
    assert arguments(Form()) == (scale, None, None, None)
    assert arguments(Form(split_scale=True)) == (scale, None, None, None)
    assert arguments(Form(mask="window")) == (scale, 5, None, None)
    assert arguments(Form(softcap=True)) == (scale, None, 2.0, None)


def test_positions_are_an_input(tmp_path: Path) -> None:
    ids = np.arange(6)[None]
    for form in (
        Form(),
        Form(rotary=False),
        Form(rotary=False, positions="mask"),
        Form(cache=True),
        Form(positions="alone"),
        Form(rotary=False, positions="alone"),
    ):
        module = imported(form, tmp_path)
        with torch.no_grad():
            other = module(torch.from_numpy(ids), torch.tensor([[0, 1, 2, 9, 4, 30]])).numpy()
        difference = np.abs(other - logits(module, ids)).max(axis=-1)[0]
        assert (difference[:3] == 0).all() and (difference[3:] > 1e-3).all()


def test_a_tied_weight_is_one_parameter(tmp_path: Path) -> None:
    module = imported(Form(), tmp_path)
    table = next(one for name, one in module.named_parameters() if name == "w_table")
    assert sum(one.untyped_storage().data_ptr() == table.untyped_storage().data_ptr() for one in module.parameters()) == 1


def test_a_copy_of_the_table_is_the_table(tmp_path: Path) -> None:
    model = decoder(Form())
    table = next(onnx.numpy_helper.to_array(one) for one in model.graph.initializer if one.name == "table")
    turned = next(node for node in model.graph.node if node.output[0] == "turned_table")
    model.graph.node.remove(turned)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(table.T), "turned_table"))
    path = saved(model, tmp_path)
    module = import_graph(read_onnx(path), path=path, name="tiny", longest=40).module
    assert sum(one.numel() == table.size for one in module.parameters()) == 1


def test_what_turns_by_positions_is_no_weight(tmp_path: Path) -> None:
    """It keeps its precision; position embeddings are weights."""
    assert [name for name, _ in imported(Form(), tmp_path).named_buffers()] == ["w_inverse_frequencies"]
    module = imported(Form(rotary=False, mask="alibi"), tmp_path)
    assert [one.tolist() for one in module.buffers()] == [[0.5, 0.25, 0.125, 0.0625]]
    assert "w_position_table" in dict(module.named_parameters()) and not module.state_dict().keys() - dict(module.named_parameters()).keys()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ("both sides", "its tokens see later ones, as an encoder's do"),
        ("blocks", "its tokens see later ones"),
        ("none", "its tokens see later ones"),
    ],
)
def test_a_model_that_is_no_decoder_is_refused(mask: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        imported(Form(mask=mask), tmp_path)


@pytest.mark.parametrize("last", ["slice", "pick"])
def test_a_graph_of_the_last_tokens_logits_gives_all(last: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 9))
    expected = reference_logits(decoder(Form()), ids)
    assert np.abs(reference_logits(decoder(Form(last=last)), ids) - expected[:, -1:]).max() < 1e-5 * np.abs(expected).max()
    assert np.abs(logits(imported(Form(last=last), tmp_path), ids) - expected).max() < 1e-4 * np.abs(expected).max()


def test_branches_with_a_cache_and_without_under_the_same_names(tmp_path: Path) -> None:
    """As one file holds two exports of a model, of which an input chooses one."""
    model = decoder(Form(positions="input", cache=True))
    branch = onnx.GraphProto(name="branch", node=model.graph.node, output=model.graph.output)
    both = onnx.helper.make_node(
        "If", ["use_cache_branch"], [one.name for one in model.graph.output], then_branch=branch, else_branch=branch
    )
    del model.graph.node[:]
    model.graph.node.append(both)
    model.graph.input.append(onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1]))
    path, ids = saved(model, tmp_path), np.random.default_rng(0).integers(0, VOCAB, (2, 9))
    module = import_graph(read_onnx(path), path=path, name="tiny", longest=40).module
    expected = reference_logits(decoder(Form(positions="input")), ids)
    assert np.abs(logits(module, ids) - expected).max() < 1e-4 * np.abs(expected).max()


def test_row_25_unsupported_operators_are_listed_at_once(tmp_path: Path) -> None:
    model = decoder(Form())
    first, second = (node for node in model.graph.node if node.op_type == "Sigmoid")
    first.op_type, first.domain, first.name = "Secret", "com.example", "one"
    second.op_type, second.name = "Hardmax", "two"
    path = saved(model, tmp_path)
    with pytest.raises(UsageError, match=r"com\.example::Secret \(one\); ai\.onnx::Hardmax \(two\)"):
        import_graph(read_onnx(path), path=path, name="tiny")


def test_a_weight_that_does_not_fit_is_named_with_its_shape(tmp_path: Path) -> None:
    model = decoder(Form())
    weight = next(one for one in model.graph.initializer if one.name == "wq")
    weight.dims[:] = [16, 64]
    path = saved(model, tmp_path)
    with pytest.raises(UsageError, match=r"MatMul \(node 'l0_q_linear'\).*\[3, 7, 32\], .*\[16, 64\]"):
        import_graph(read_onnx(path), path=path, name="tiny")
