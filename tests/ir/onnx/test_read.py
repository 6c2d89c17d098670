"""Bad files are refused by what is wrong with them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from flexspec.errors import UsageError
from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import read_onnx
from flexspec.ir.onnx.tensor_bytes import tensor_value
from onnx_operator_cases import CASES, model_of


def _model() -> ModelProto:
    return model_of(CASES["gqa"])


def _read(path: Path) -> None:
    import_graph(read_onnx(path), path=path, name="case")


def _external(location: str, offset: int = 0, length: int | None = None) -> Callable[[ModelProto], None]:
    def move(model: ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", offset), ("length", length)):
            if value is not None:
                tensor.external_data.add(key=key, value=str(value))

    return move


def _cycle(model: ModelProto) -> None:
    model.graph.node[1].input[0] = model.graph.node[-1].output[0]
    model.graph.node[-1].input[0] = model.graph.node[1].output[0]


def _unsorted(model: ModelProto) -> None:
    nodes = list(model.graph.node)[::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _dangling(model: ModelProto) -> None:
    del model.graph.node[0]


def _unknown(model: ModelProto) -> None:
    model.graph.node[0].op_type = "Strange"
    model.graph.node[-1].domain = "com.example"


def _weight_shape(model: ModelProto) -> None:
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "wq")
    weight.CopyFrom(onnx.numpy_helper.from_array(np.zeros((72, 64), np.float32), "wq"))


def _few_bytes(model: ModelProto) -> None:
    model.graph.initializer[0].raw_data = b"1234"


def _recursive(model: ModelProto) -> None:
    model.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], [helper.make_node("F", ["a"], ["b"], domain="own")], [helper.make_opsetid("own", 1)])
    )
    model.graph.node[0].domain, model.graph.node[0].op_type = "own", "F"


def _opset(model: ModelProto) -> None:
    model.opset_import[0].version = 9


def _twice(model: ModelProto) -> None:
    model.graph.node.append(model.graph.node[0])


def _two_tensors(model: ModelProto) -> None:
    model.graph.initializer.append(model.graph.initializer[0])


def _file_version(model: ModelProto) -> None:
    model.ir_version = 99


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_external("../secret"), "outside the model's folder"),
        (_external("/etc/hostname"), "outside the model's folder"),
        (_external("weights.data"), "'weights.data', which is missing"),
        (_external("short.data"), "takes 5120 bytes"),
        (_external("short.data", offset=-4), "negative"),
        (_external("whole.data", length=1 << 60), f"has 5120 for it at 0, where {1 << 60} are said to be"),
        (_cycle, "cycle"),
        (_unsorted, "not topologically sorted"),
        (_dangling, "nothing makes '"),
        (_unknown, r"ai.onnx::Strange .*com.example::GroupQueryAttention"),
        (_weight_shape, r"64.*\[72, 64\]"),
        (_few_bytes, "takes 5120 bytes, but has 4"),
        (_recursive, "calls itself"),
        (_opset, "opset 9; opsets 11 to 24"),
        (_twice, "made twice"),
        (_two_tensors, "'table' is there twice"),
        (_file_version, "of IR version 99; versions up to"),
    ],
)
def test_bad_models(change: Callable[[ModelProto], None], message: str, tmp_path: Path) -> None:
    model = _model()
    change(model)
    (tmp_path / "short.data").write_bytes(b"123")
    (tmp_path / "whole.data").write_bytes(bytes(5120))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=message):
        _read(path)


def test_a_link_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.data").write_bytes(bytes(5120))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.data").symlink_to(tmp_path / "elsewhere.data")
    model = _model()
    _external("weights.data")(model)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match="outside"):
        _read(folder / "model.onnx")


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "holds no graph"), (b"GGUF\x03\0\0\0" + bytes(range(256)), "not an ONNX file"), (None, "cut short")]
)
def test_bad_bytes(content: bytes | None, message: str, tmp_path: Path) -> None:
    whole = _model().SerializeToString()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UsageError, match=message):
        _read(path)


@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "INT8", "UINT8", "UINT16", "BOOL", "INT4", "UINT4"])
@pytest.mark.parametrize("place", ["raw", "elements", "external"])
def test_tensors_are_read_as_they_are_written(kind: str, place: str, tmp_path: Path) -> None:
    signed = kind not in ("UINT8", "UINT16", "BOOL", "UINT4")
    numbers = [0, 1, 1, 0, 1] if kind == "BOOL" else [0, 1, -3 if signed else 3, 5, 7]
    element = getattr(TensorProto, kind)
    tensor = helper.make_tensor("t", element, [5], numbers)
    if place != "elements":
        tensor = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), "t")
    path = tmp_path / "model.onnx"
    if place == "external":
        (tmp_path / "t.data").write_bytes(b"pad!" + tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="t.data")
        tensor.external_data.add(key="offset", value="4")
    assert tensor_value(tensor, path).double().tolist() == numbers


def test_functions_are_inlined(tmp_path: Path) -> None:
    model = model_of(CASES["gelu"])
    node = model.graph.node[-1]
    body = helper.make_node(node.op_type, ["a"], ["b"], domain=node.domain)
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], [body], list(model.opset_import)))
    model.opset_import.append(helper.make_opsetid("own", 1))
    node.domain, node.op_type = "own", "F"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert [inner.op_type for inner in read_onnx(path).graph.node] == ["Gather", "Gelu"]
    _read(path)
