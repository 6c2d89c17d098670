"""From what a user calls a model to its weights."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexspec.errors import UsageError
from flexspec.models import smollm2
from flexspec.models.decoder_check import checked_vocab_size
from flexspec.models.gguf_file import load_gguf
from flexspec.models.loaded_model import LoadedModel, describe
from flexspec.models.onnx_file import SUFFIX as ONNX_SUFFIX
from flexspec.models.onnx_file import load_onnx
from flexspec.models.pretrained import ALLOWED_MODELS, load_folder, load_hub, load_tokenizer
from flexspec.models.shared_copy import shared_copy


def load_model(
    model: str | os.PathLike[str] | nn.Module,
    *,
    tokenizer: PreTrainedTokenizerBase | str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
    in_parts: bool = False,
) -> LoadedModel:
    """The causal language model that `model` names, with floating-point weights in `dtype`, ready for capture.

    Args:
        model: `"smollm2-135m"`, a Hugging Face folder, a GGUF or ONNX file, a name on the Hugging Face hub, or a module, which
            stays as it is.
        tokenizer: used instead of the model's own; a module has none unless this gives it. A name or folder is looked up.
        dtype: of the weights; a bfloat16 model is the same whether it is loaded so or rounded after float32.
        in_parts: for a rank that takes only a part of the weights. They stay in their file, in the dtype that they have there, and
            take memory only where they are used; so a model that is loaded from files is not run for a check. What can't be used
            as it lies there, a large GGUF file, is first converted to `dtype`, once.

    Raises:
        UsageError: if there is no such model, it is damaged, or it isn't a decoder.
    """
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = load_tokenizer(os.fspath(tokenizer))
    own_tokenizer: PreTrainedTokenizerBase | None = None
    if isinstance(model, nn.Module):
        name = type(model).__name__
        module = shared_copy(model, None if in_parts else dtype).eval()
    elif isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        module, own_tokenizer = _load_named(name, dtype, in_parts=in_parts)
    else:
        raise UsageError(f"model {model!r} is a {type(model).__name__}: {ALLOWED_MODELS}")
    vocab_size = _unchecked_vocab_size(module) if in_parts and not isinstance(model, nn.Module) else checked_vocab_size(name, module)
    return describe(name, module, tokenizer if tokenizer is not None else own_tokenizer, vocab_size)


def _unchecked_vocab_size(module: Any) -> int:
    output = getattr(module, "get_output_embeddings", None)
    return int(module.config.vocab_size if output is None else output().weight.shape[0])


def _load_named(name: str, dtype: torch.dtype, *, in_parts: bool) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    path = Path(name).expanduser()
    if not name or (_looks_like_a_path(name) and not path.exists()):
        raise UsageError(f"model {name!r} does not exist: {ALLOWED_MODELS}")
    if name == smollm2.NAME:
        path = smollm2.smollm2_gguf()
    if path.is_dir():
        return load_folder(path, None if in_parts else dtype)
    if path.is_file() and path.suffix == ONNX_SUFFIX:
        return load_onnx(path, None if in_parts else dtype)
    if path.is_file():
        return load_gguf(path, dtype, in_parts=in_parts)
    return load_hub(name, None if in_parts else dtype)


def _looks_like_a_path(name: str) -> bool:
    return name.startswith(("/", ".", "~")) or name.count("/") > 1 or Path(name).suffix in (".gguf", ".onnx", ".safetensors")
