"""Files damaged at random are refused with a ValueError or imported, in little time and memory; nothing else happens."""

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import onnx
import pytest

from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import read_onnx
from onnx_decoders import Form, decoder
from onnx_operator_cases import CASES, model_of

_SECONDS = 60
_BYTES = 3 << 30
_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 2**16, 2**31, 2**40, 2**62)
_FEW = 20
_MANY = 2000


def damaged_bytes(draw: random.Random, content: bytes) -> bytes:
    """Content with bytes changed, cut out, doubled or missing at the end."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(changed))
        end = min(len(changed), start + draw.choice((1, 2, 8, 64)))
        match draw.randrange(5):
            case 0:
                changed[start] = draw.randrange(256)
            case 1:
                changed[start:end] = draw.randbytes(end - start)
            case 2:
                del changed[start:end]
            case 3:
                changed[start:start] = changed[start:end]
            case 4:
                del changed[max(1, start) :]
    return bytes(changed)


def damaged_model(draw: random.Random, model: onnx.ModelProto) -> bytes:
    """A model that is still ONNX, with names, inputs, attributes, sizes, types, operators or order exchanged."""
    graph = model.graph
    names = [name for node in graph.node for name in (*node.input, *node.output)]
    for _ in range(draw.randint(1, 3)):
        node, tensor = draw.choice(graph.node), draw.choice(graph.initializer)
        match draw.randrange(14):
            case 0 if node.input:
                node.input[draw.randrange(len(node.input))] = draw.choice(names)
            case 1 if node.attribute:
                attribute = draw.choice(node.attribute)
                attribute.i, attribute.f = draw.choice(_NUMBERS), draw.choice((0.0, -1.0, float("nan"), float("inf")))
                attribute.ints[:] = [draw.choice(_NUMBERS) for _ in attribute.ints]
            case 2 if tensor.dims:
                tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(_NUMBERS)
            case 3:
                node.op_type, node.domain = (other := draw.choice(graph.node)).op_type, other.domain
            case 4:
                tensor.data_type = draw.randrange(30)
            case 5 if len(graph.node) > 1:
                del graph.node[draw.randrange(len(graph.node))]
            case 6:
                for attribute in node.attribute:
                    if attribute.t.int64_data:
                        attribute.t.int64_data[0] = draw.choice(_NUMBERS)
            case 7 if tensor.data_type == onnx.TensorProto.INT64:
                numbers = onnx.numpy_helper.to_array(tensor)
                odd = np.array([draw.choice(_NUMBERS) for _ in range(numbers.size)], dtype=np.int64).reshape(numbers.shape)
                tensor.CopyFrom(onnx.numpy_helper.from_array(odd, tensor.name))
            case 8 if node.attribute:
                attribute = draw.choice(node.attribute)
                attribute.type, attribute.name = draw.randrange(15), draw.choice(("axis", "to", "perm", attribute.name))
            case 9:
                model.opset_import[draw.randrange(len(model.opset_import))].version = draw.choice((1, 11, 13, 18, 23, 24, 25, 2**40))
            case 10:
                one = draw.choice((*graph.input, *graph.output)).type.tensor_type
                one.elem_type = draw.randrange(30)
                one.shape.dim.add().dim_value = draw.choice(_NUMBERS)
            case 11:
                tensor.data_location = onnx.TensorProto.EXTERNAL
                for key in ("location", "offset", "length"):
                    tensor.external_data.add(key=key, value=draw.choice((".", "..", "model.onnx", "/dev/zero", *map(str, _NUMBERS))))
            case 12:
                graph.node.append(draw.choice(graph.node))
                graph.node[-1].output[:] = [name + "x" for name in graph.node[-1].output]
            case 13:
                branch = onnx.helper.make_graph([draw.choice(graph.node)], "branch", [], list(graph.output))
                node.attribute.append(onnx.helper.make_attribute("then_branch", branch))
                node.op_type = draw.choice(("If", "Loop", node.op_type))
    return model.SerializeToString()


def _whole_model(draw: random.Random) -> onnx.ModelProto:
    if draw.randrange(3):
        return model_of(CASES[draw.choice(list(CASES))])
    masks, branches = ("causal", "window", "alibi"), ("", "choice", "branch")
    form = Form(mask=draw.choice(masks), by_length=draw.choice(branches), cache=bool(draw.randrange(2)), softcap=bool(draw.randrange(2)))
    return decoder(form)


def import_damaged(folder: Path, count: int, seed: int, longest: int | None = None) -> int:
    """Import damaged models; how many were refused."""
    draw, refused = random.Random(seed), 0
    path = folder / "model.onnx"
    for _ in range(count):
        model = _whole_model(draw)
        path.write_bytes(damaged_model(draw, model) if draw.randrange(3) else damaged_bytes(draw, model.SerializeToString()))
        try:
            import_graph(read_onnx(path), path=path, name="damaged", longest=longest)
        except ValueError:
            refused += 1
    return refused


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    assert import_damaged(tmp_path, _FEW, seed=0, longest=24) > _FEW // 3


@pytest.mark.slow
def test_many_damaged_models_are_refused_within_limits(tmp_path: Path) -> None:
    program = [sys.executable, __file__, str(tmp_path), str(_MANY)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout) > _MANY // 3


class OutOfTimeError(BaseException):
    """No importer may catch it."""


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def main() -> None:
    """Import many within limits of memory, and of time for each ten."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, used + _BYTES))
    signal.signal(signal.SIGALRM, _out_of_time)
    refused = 0
    for seed in range(int(sys.argv[2]) // 10):
        signal.alarm(_SECONDS)
        print(f"mutants of seed {seed}", file=sys.stderr)
        refused += import_damaged(Path(sys.argv[1]), 10, seed, longest=200 if seed % 4 else None)
    print(refused)


if __name__ == "__main__":
    main()
