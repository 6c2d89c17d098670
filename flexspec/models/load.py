"""From what a user calls a model to its weights, or to how it is made."""

import os
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from flexspec.errors import UsageError, shown
from flexspec.models.decoder_check import checked_vocab_size
from flexspec.models.gguf_file import check_gguf, load_gguf
from flexspec.models.loaded_model import LoadedModel, describe
from flexspec.models.located import is_onnx, located
from flexspec.models.onnx_file import OnnxDecoder, load_onnx
from flexspec.models.pretrained import (
    ALLOWED_MODELS,
    check_folder,
    check_hub,
    find_tokenizer,
    load_folder,
    load_hub,
    quiet_transformers,
    read_config,
)
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
        tokenizer = find_tokenizer(os.fspath(tokenizer))
    own_tokenizer: PreTrainedTokenizerBase | None = None
    if isinstance(model, nn.Module):
        name = type(model).__name__
        module = shared_copy(model, None if in_parts else dtype).eval()
    elif isinstance(model, str | os.PathLike):
        name = os.fspath(model)
        module, own_tokenizer = _load_named(name, dtype, in_parts=in_parts)
    else:
        raise UsageError(f"model {shown(model)} is a {type(model).__name__}: {ALLOWED_MODELS}, or an nn.Module")
    vocab_size = _unchecked_vocab_size(module) if in_parts and not isinstance(model, nn.Module) else checked_vocab_size(name, module)
    return describe(name, module, tokenizer if tokenizer is not None else own_tokenizer, vocab_size)


def _unchecked_vocab_size(module: Any) -> int:
    output = getattr(module, "get_output_embeddings", None)
    return int(module.config.vocab_size if output is None else output().weight.shape[0])


def load_outline(model: str | os.PathLike[str]) -> PreTrainedConfig | OnnxDecoder:
    """What the operators of a model are read off: its configuration, or the graph of an ONNX file, whose weights stay there.

    Raises:
        UsageError: if there is no such model, what says how it is made is damaged, or it isn't a decoder.
    """
    name = os.fspath(model)
    path = located(name)
    if path is not None and is_onnx(path):
        decoder = load_model(path, in_parts=True).module
        assert isinstance(decoder, OnnxDecoder)
        return decoder
    if path is None:
        check_hub(name)
    elif path.is_dir():
        check_folder(path)
    with quiet_transformers():
        if path is None or path.is_dir():
            return read_config(name if path is None else str(path))
        check_gguf(path)
        return read_config(str(path.parent), gguf_file=path.name)


def _load_named(name: str, dtype: torch.dtype, *, in_parts: bool) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    path = located(name)
    if path is None:
        return load_hub(name, None if in_parts else dtype)
    if path.is_dir():
        return load_folder(path, None if in_parts else dtype)
    if is_onnx(path):
        return load_onnx(path, None if in_parts else dtype)
    return load_gguf(path, dtype, in_parts=in_parts)
