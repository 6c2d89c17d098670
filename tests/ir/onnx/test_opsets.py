"""The same decoder in every operator set and file version that can be imported gives the same logits."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from _pytest.mark.structures import ParameterSet
from onnx import helper, version_converter

from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import OPSETS, read_onnx
from onnx_decoders import VOCAB, Form, decoder, reference_logits, saved

_WRITTEN = 17
_FORMS = (Form(cache=True), Form(rotary=False, mask="alibi", positions="mask"), Form(softcap=True, mask="window"))


def _few(versions: Iterable[int], *chosen: int) -> list[ParameterSet]:
    """The others are slow tests."""
    return [pytest.param(one, marks=[] if one in chosen else [pytest.mark.slow]) for one in versions]


def _in_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Newer ones as onnx converts them; for older ones what they write otherwise is rewritten: its converter has no way back."""
    if version >= _WRITTEN:
        return version_converter.convert_version(model, version)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.op_type in ("Unsqueeze", "Squeeze") and version < 13:
            axes = constants[node.input[1]].tolist()
            nodes.append(helper.make_node(node.op_type, node.input[:1], node.output, axes=axes))
        elif node.op_type == "LessOrEqual" and version < 12:
            nodes.append(helper.make_node("Greater", node.input, [node.output[0] + "_not"]))
            nodes.append(helper.make_node("Not", nodes[-1].output, node.output))
        else:
            nodes.append(node)
    graph = helper.make_graph(nodes, "decoder", model.graph.input, model.graph.output, model.graph.initializer)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=model.ir_version)


def _in_file_version(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    """Before version 4 every weight is an input too."""
    model.ir_version = version
    if version < 4:
        model.graph.input.extend(helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in model.graph.initializer)
    return model


def _check(model: onnx.ModelProto, expected: np.ndarray, ids: np.ndarray, folder: Path) -> None:
    path = saved(model, folder)
    module = import_graph(read_onnx(path), path=path, name="tiny", longest=40).module
    with torch.no_grad():
        logits = module(torch.from_numpy(ids), torch.arange(ids.shape[1]).expand(ids.shape)).numpy()
    assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("version", _few(OPSETS, 11, 12, 13, 24))
def test_operator_sets(version: int, tmp_path: Path) -> None:
    form = _FORMS[version % len(_FORMS)]
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 9))
    _check(_in_opset(decoder(form), version), reference_logits(decoder(form), ids), ids, tmp_path)


@pytest.mark.parametrize("version", _few((3, 4, 7, 8, 10, onnx.IR_VERSION), 3))
def test_file_versions(version: int, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 9))
    model = _in_opset(decoder(_FORMS[0]), 11 if version < 7 else 17)
    _check(_in_file_version(model, version), reference_logits(decoder(_FORMS[0]), ids), ids, tmp_path)
