"""GGUF files whose headers are damaged at random are refused with a ValueError or read, in little time and memory; nothing else happens."""

import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter

from flexspec.models.gguf_file import load_gguf

_SECONDS = 30
_BYTES = 3 << 30
_HIDDEN, _VOCAB = 32, 40
_FEW, _MANY = 8, 2000
_SQUARE = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd": (_VOCAB, _HIDDEN),
    "output": (_VOCAB, _HIDDEN),
    "output_norm": (_HIDDEN,),
    **{f"blk.0.{name}": (_HIDDEN, _HIDDEN) for name in _SQUARE},
    **{f"blk.0.{name}": (_HIDDEN,) for name in ("attn_norm", "ffn_norm")},
}
_TOKENS = ["<s>", "</s>", *(chr(97 + index) for index in range(_VOCAB - 3)), "ab"]
_FACTS: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": _HIDDEN,
    "llama.feed_forward_length": _HIDDEN,
    "llama.attention.head_count": 2,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": _VOCAB,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": _TOKENS,
    "tokenizer.ggml.token_type": [3, 3, *[1] * (_VOCAB - 2)],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
}
_ODD = (0, 1, 2, 3, 7, 33, 2**16, 2**31 - 1, 2**31, 2**32 - 1, -1, -(2**31), 0.0, -1.5, float("nan"), float("inf"))
_ODD_OTHERS: tuple[Any, ...] = ("", "llama", "gpt2", "é\u0000", True, [1, 2, 3], ["a", "b"], [0.5], ["a b c"], [""])


class OutOfTimeError(BaseException):
    """No reader may catch it."""


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def _write(path: Path, facts: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], kind: str = "F32") -> int:
    """A LLaMA model of one layer; the size of its header."""
    draw = np.random.RandomState(0)
    writer, size = GGUFWriter(path, "llama"), 0
    for name, fact in facts.items():
        match fact:
            case bool():
                writer.add_bool(name, fact)
            case int():
                (writer.add_uint32 if 0 <= fact < 2**32 else writer.add_int32)(name, fact)
            case float():
                writer.add_float32(name, fact)
            case str():
                writer.add_string(name, fact)
            case _:
                writer.add_array(name, fact)
    for name, shape in shapes.items():
        tensor = draw.randn(*shape).astype(np.float16 if kind == "F16" and len(shape) > 1 else np.float32)
        if kind == "Q8_0" and len(shape) > 1 and shape[-1] % 32 == 0:
            rows = np.zeros((*shape[:-1], shape[-1] // 32 * 34), dtype=np.uint8)
            writer.add_tensor(f"{name}.weight", rows, raw_dtype=GGMLQuantizationType.Q8_0)
            size += rows.nbytes
        else:
            writer.add_tensor(f"{name}.weight", tensor)
            size += tensor.nbytes
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size - size


def _write_damaged(draw: random.Random, path: Path) -> None:
    """A file that is GGUF all over, but whose facts or tensors are not a model's."""
    facts, shapes = dict(_FACTS), dict(_SHAPES)
    for _ in range(draw.randint(1, 2)):
        fact, tensor = draw.choice(list(facts)), draw.choice(list(shapes))
        match draw.randrange(6):
            case 0:
                facts[fact] = draw.choice(_ODD)
            case 1:
                facts[fact] = draw.choice((*_ODD, *_ODD_OTHERS))
            case 2:
                del facts[fact]
            case 3:
                shapes[tensor] = tuple(draw.choice((1, 8, 31, 32, 64)) for _ in range(draw.randint(1, 3)))
            case 4:
                shapes[draw.choice(("blk.1.attn_q", "blk.99999999.attn_q", "strange", tensor + "x"))] = shapes.pop(tensor)
            case 5 if isinstance(facts[fact], list) and facts[fact]:
                facts[fact] = facts[fact][: draw.randrange(1, len(facts[fact]) + 1)] * draw.choice((1, 2))
    _write(path, facts, shapes, draw.choice(("F32", "F16", "Q8_0")))


def _damaged(draw: random.Random, content: bytes, header: int) -> bytes:
    changed = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        start = draw.randrange(4, header)
        match draw.randrange(4):
            case 0:
                changed[start] = draw.randrange(256)
            case 1:
                changed[start : start + 8] = draw.choice((0, 1, 2**31, 2**40, 2**63, 2**64 - 1)).to_bytes(8, "little")
            case 2:
                del changed[start : start + draw.choice((1, 8))]
            case 3:
                del changed[start:]
                return bytes(changed)
    return bytes(changed)


def read_damaged(folder: Path, count: int, seed: int) -> int:
    """Read damaged files; how many were refused."""
    path = folder / "whole.gguf"
    header, draw, refused = _write(path, _FACTS, _SHAPES), random.Random(seed), 0
    load_gguf(path, torch.float32)
    content = path.read_bytes()
    signal.signal(signal.SIGALRM, _out_of_time)
    for index in range(count):
        damaged = folder / f"{index}.gguf"
        if draw.randrange(2):
            damaged.write_bytes(_damaged(draw, content, header))
        else:
            _write_damaged(draw, damaged)
        signal.alarm(_SECONDS)
        try:
            load_gguf(damaged, torch.float32)
        except ValueError:
            refused += 1
        except BaseException:
            print(f"mutant {index} of seed {seed}")
            raise
        finally:
            signal.alarm(0)
        damaged.unlink()
    return refused


def test_damaged_headers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))
    assert read_damaged(tmp_path, _FEW, seed=0) >= _FEW // 4


@pytest.mark.slow
def test_many_damaged_headers_are_refused_within_limits(tmp_path: Path) -> None:
    program = [sys.executable, __file__, str(tmp_path), str(_MANY)]
    environment = {**os.environ, "FLEXSPEC_HOME": str(tmp_path / "home")}
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(done.stdout.split()[-1]) > _MANY // 4


def main() -> None:
    """Read many within a limit of memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _BYTES, used + _BYTES))
    print(read_damaged(Path(sys.argv[1]), int(sys.argv[2]), seed=1))


if __name__ == "__main__":
    main()
