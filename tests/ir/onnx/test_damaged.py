"""Files damaged at random are refused with a ValueError or imported, in little time and memory; nothing else happens."""

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

import onnx
import pytest

from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.read import read_onnx
from onnx_operator_cases import CASES, model_of

_SECONDS = 20
_BYTES = 3 << 30
_NUMBERS = (-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 7, 64, 2**16, 2**31, 2**40, 2**62)
_FEW = 60
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
    """A model that is still ONNX, with inputs, attributes, sizes or operators exchanged."""
    graph = model.graph
    names = [name for node in graph.node for name in (*node.input, *node.output)]
    for _ in range(draw.randint(1, 3)):
        node, tensor = draw.choice(graph.node), draw.choice(graph.initializer)
        match draw.randrange(7):
            case 0 if node.input:
                node.input[draw.randrange(len(node.input))] = draw.choice(names)
            case 1 if node.attribute:
                attribute = draw.choice(node.attribute)
                attribute.i, attribute.f = draw.choice(_NUMBERS), draw.choice((0.0, -1.0, float("nan"), float("inf")))
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
    return model.SerializeToString()


def import_damaged(folder: Path, count: int, seed: int) -> int:
    """Import damaged models; how many were refused."""
    draw, refused = random.Random(seed), 0
    names, path = list(CASES), folder / "model.onnx"
    for _ in range(count):
        model = model_of(CASES[draw.choice(names)])
        path.write_bytes(damaged_model(draw, model) if draw.randrange(2) else damaged_bytes(draw, model.SerializeToString()))
        try:
            import_graph(read_onnx(path), path=path, name="damaged")
        except ValueError:
            refused += 1
    return refused


def test_damaged_models_are_refused(tmp_path: Path) -> None:
    assert import_damaged(tmp_path, _FEW, seed=0) > _FEW // 3


@pytest.mark.slow
def test_many_damaged_models_are_refused_within_limits(tmp_path: Path) -> None:
    program = [sys.executable, __file__, str(tmp_path), str(_MANY)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=1800, check=False)
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
        refused += import_damaged(Path(sys.argv[1]), 10, seed)
    print(refused)


if __name__ == "__main__":
    main()
