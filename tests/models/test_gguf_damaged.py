"""GGUF files whose headers are damaged at random are refused with a ValueError or read; nothing else happens."""

import random
import signal
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch
from gguf import GGUFWriter

from flexspec.models.gguf_file import load_gguf

_SECONDS = 30
_HIDDEN, _VOCAB = 32, 40


class OutOfTimeError(BaseException):
    """No reader may catch it."""


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTimeError


def _write(path: Path) -> int:
    """A LLaMA model of one layer; the size of its header."""
    draw = np.random.RandomState(0)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(_HIDDEN)
    writer.add_feed_forward_length(_HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(_VOCAB)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (_VOCAB, _HIDDEN), "output": (_VOCAB, _HIDDEN), "output_norm": (_HIDDEN,)}
    shapes |= {f"blk.0.{name}": (_HIDDEN, _HIDDEN) for name in square}
    shapes |= {f"blk.0.{name}": (_HIDDEN,) for name in ("attn_norm", "ffn_norm")}
    size = 0
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", draw.randn(*shape).astype(np.float32))
        size += 4 * int(np.prod(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.stat().st_size - size


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
    header, draw, refused = _write(path), random.Random(seed), 0
    load_gguf(path, torch.float32)
    signal.signal(signal.SIGALRM, _out_of_time)
    for index in range(count):
        damaged = folder / f"{index}.gguf"
        damaged.write_bytes(_damaged(draw, path.read_bytes(), header))
        signal.alarm(_SECONDS)
        try:
            load_gguf(damaged, torch.float32)
        except ValueError:
            refused += 1
        finally:
            signal.alarm(0)
        damaged.unlink()
    return refused


@pytest.mark.parametrize("count", [8, pytest.param(300, marks=pytest.mark.slow)])
def test_damaged_headers_are_refused(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))
    assert read_damaged(tmp_path, count, seed=0) > count // 4
