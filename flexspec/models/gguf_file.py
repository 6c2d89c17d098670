"""GGUF files, read through transformers; small ones are converted once, since reading them takes long."""

import contextlib
import hashlib
import io
import os
import shutil
from pathlib import Path

import torch
from filelock import FileLock
from gguf import GGUFReader
from huggingface_hub.errors import StrictDataclassError
from rich.console import Console
from torch import nn
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedTokenizerBase

from flexspec.errors import UsageError
from flexspec.home import cache_home
from flexspec.models.decoder_check import first_line
from flexspec.models.gguf_header import check_header
from flexspec.models.gguf_tokenizer import gguf_tokenizer
from flexspec.models.pretrained import ALLOWED_MODELS, load_folder, quiet_transformers

# Up to here a converted copy (float32, up to 8 times the file's size) is always kept: SmolLM2 takes 15 s to read as GGUF and 0.3 s as
# safetensors.
CONVERT_LIMIT_BYTES = 256 << 20
# Part of the key: raise it when a conversion's result changes.
_CONVERSION = 1
_MAGIC = b"GGUF"
# What transformers raises for a file whose facts are not a model's: whatever they lead it into.
_REFUSALS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    StrictDataclassError,
    TypeError,
    ValueError,
)


def load_gguf(path: Path, dtype: torch.dtype, *, in_parts: bool = False) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    """The model in a GGUF file, dequantised to `dtype`, and its tokenizer if the file has one.

    `in_parts` leaves the weights in the file of a converted copy, in that one's dtype; a large file is converted to `dtype` for it.

    Raises:
        UsageError: if the file isn't GGUF, is cut short, or holds an architecture that transformers doesn't read from GGUF.
    """
    check_gguf(path)
    small = path.stat().st_size <= CONVERT_LIMIT_BYTES
    if small or in_parts:
        return load_folder(_converted(path, torch.float32 if small else dtype), None if in_parts else dtype)
    return _read(path, dtype)


def check_gguf(path: Path) -> None:
    """Refuse a file that isn't GGUF, or whose header is damaged.

    Raises:
        UsageError: if it is one.
    """
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise UsageError(f"{path} is not a GGUF file: {ALLOWED_MODELS}")
    check_header(path)


def _converted(path: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A Hugging Face folder in the cache with the same model; float32, in which every GGUF type is exact, unless it is large."""
    status = path.stat()
    key = f"{_CONVERSION} {path.resolve()} {status.st_size} {status.st_mtime_ns}"
    if dtype != torch.float32:
        key += f" {dtype}"
    home = cache_home() / "converted"
    folder = home / f"{path.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    try:
        home.mkdir(parents=True, exist_ok=True)
        with FileLock(home / f"{folder.name}.lock"):
            if not folder.is_dir():  # another process may have converted it while this one waited
                _convert(path, folder, dtype)
    except OSError as error:
        raise UsageError(f"{path} can't be converted in {home} ({error}): free some space there, or set FLEXSPEC_HOME") from error
    return folder


def _convert(path: Path, folder: Path, dtype: torch.dtype) -> None:
    # Whoever holds the lock owns this folder: anything in it was left by an interrupted conversion.
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with Console(stderr=True).status(f"converting {path.name}, once"):
            module, tokenizer = _read(path, dtype)
            with quiet_transformers():
                module.save_pretrained(partial)  # type: ignore[operator]
                if tokenizer is not None:
                    tokenizer.save_pretrained(partial)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read(path: Path, dtype: torch.dtype) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise UsageError(f"{path} is damaged or cut short ({first_line(error)}): fetch it again") from error
    _check_layers(reader, path)
    # transformers shows a bar of its own while it dequantises, and offers no way to leave it out.
    with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
        try:
            module: nn.Module = AutoModelForCausalLM.from_pretrained(
                str(path.parent), gguf_file=path.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True), trust_remote_code=False
            )
            tokenizer = gguf_tokenizer(reader, path)
        except _REFUSALS as error:
            raise UsageError(f"GGUF file {path} can't be loaded ({first_line(error)}): {ALLOWED_MODELS}") from error
    return module.eval(), tokenizer


def _check_layers(reader: GGUFReader, path: Path) -> None:
    """A damaged number of layers would have transformers list the tensors of billions of them, a missing one those of its own default."""
    counts = [entry.contents() for name, entry in reader.fields.items() if name.endswith(".block_count")]
    if len(counts) != 1 or not isinstance(counts[0], int) or counts[0] > len(reader.tensors):
        said = counts[0] if len(counts) == 1 else "an unknown number of"
        raise UsageError(f"{path} says that it has {said} layers, but has {len(reader.tensors)} tensors: it is damaged; fetch it again")
