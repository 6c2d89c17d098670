"""Hugging Face checkpoints: a folder, or a name on the hub."""

import contextlib
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as hf_logging

from flexspec.errors import UsageError
from flexspec.models.decoder_check import first_line

ALLOWED_MODELS = (
    "give 'smollm2-135m', a folder with a config.json, a .gguf or .onnx file, or a Hugging Face name such as "
    "'HuggingFaceTB/SmolLM2-135M-Instruct'"
)
_ALLOWED_TOKENIZERS = "give a folder with a tokenizer's files, or a Hugging Face name such as 'HuggingFaceTB/SmolLM2-135M-Instruct'"

# What transformers raises for a checkpoint that it can't use.
_LOADING_ERRORS = (OSError, ValueError, KeyError, RuntimeError, ImportError, TypeError, AttributeError, SafetensorError)

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")

_HUB_TIMEOUT_S = 10


def load_folder(folder: Path, dtype: torch.dtype | None) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    """The model in a Hugging Face folder with floating-point weights in `dtype`, and its tokenizer if the folder has one.

    None leaves weights in the dtype that they have in their files, where those of safetensors files then stay: memory-mapped.

    Raises:
        UsageError: if the folder has no config, is damaged or incomplete, or holds something else than a decoder.
    """
    check_folder(folder)
    with quiet_transformers():
        module = _load_weights(str(folder), dtype)
        has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
        return module, load_tokenizer(str(folder)) if has_tokenizer else None


def load_hub(name: str, dtype: torch.dtype | None) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    """The model called `name` on the Hugging Face hub, and its tokenizer, as `load_folder`; transformers downloads and caches it.

    Raises:
        UsageError: if there is no such model, the hub can't be reached, or the model isn't a decoder.
    """
    check_hub(name)
    with quiet_transformers(bars=True):
        return _load_weights(name, dtype), load_tokenizer(name)


def read_config(source: str, *, gguf_file: str | None = None) -> PreTrainedConfig:
    """The configuration of a decoder in a folder, in a GGUF file of it, or of a name on the hub.

    Raises:
        UsageError: if there is none, it is damaged, or it is that of something else.
    """
    options = {} if gguf_file is None else {"gguf_file": gguf_file}
    name = source if gguf_file is None else str(Path(source) / gguf_file)
    with _told(name, "its configuration can't be read"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    if getattr(config, "is_encoder_decoder", False) or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        architecture = ", ".join(config.architectures or [config.model_type])
        raise UsageError(
            f"model {name} ({architecture}) is not a decoder-only language model: "
            "give one, such as LlamaForCausalLM, Qwen3ForCausalLM or GPT2LMHeadModel"
        )
    return config


def check_folder(folder: Path) -> None:
    """Refuse a folder without a model.

    Raises:
        UsageError: if it is one.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"folder {folder} has no config.json: {ALLOWED_MODELS}")


def check_hub(name: str, *, kind: str = "model", file: str = "config.json", allowed: str = ALLOWED_MODELS) -> None:
    """Refuse at once what is not there while the Hugging Face hub can't be reached.

    Args:
        name: on the hub.
        kind: what it is the name of, for messages.
        file: one of its files; if that is in the cache, the hub need not be reached.
        allowed: what messages end with.

    Raises:
        UsageError: if it isn't there, or no name can be written so.
    """
    try:
        cached = isinstance(try_to_load_from_cache(name, file), str)
    except HFValidationError as error:
        raise UsageError(f"{kind} {name!r} is unknown: {allowed}") from error
    # Without this, transformers retries for 20 s and more before it says that there is no connection.
    if not cached and not _hub_answers(name):
        raise UsageError(f"{kind} {name!r} is neither here nor on the Hugging Face hub, which can't be reached now: {allowed}")


def find_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer that a user names: a folder, or a name on the hub.

    Raises:
        UsageError: as `load_tokenizer`.
    """
    folder = os.path.expanduser(name)
    if os.path.exists(folder):
        return load_tokenizer(folder)
    check_hub(name, kind="tokenizer", file="tokenizer_config.json", allowed=_ALLOWED_TOKENIZERS)
    return load_tokenizer(name)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder or of a name on the hub.

    Raises:
        UsageError: if there is none, or if it is damaged.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except _LOADING_ERRORS as error:
        raise UsageError(
            f"the tokenizer of {source} can't be loaded ({first_line(error)}): give tokenizer=... or repair its files"
        ) from error
    return tokenizer


@contextlib.contextmanager
def quiet_transformers(*, bars: bool = False) -> Iterator[None]:
    """Keeps transformers from printing advice, and progress unless `bars`; its settings come back afterwards."""
    settings: Any = hf_logging  # untyped
    verbosity, had_bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    if not bars:
        settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if had_bars:
            settings.enable_progress_bar()


def _load_weights(source: str, dtype: torch.dtype | None) -> nn.Module:
    config = read_config(source)
    with _told(source, "its weights can't be loaded"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype or "auto", trust_remote_code=False, output_loading_info=True
        )
    module: nn.Module = loaded[0]
    missing = sorted(loaded[1]["missing_keys"])
    if missing:  # transformers fills them with random numbers
        raise UsageError(f"model {source} lacks {len(missing)} of its weights, {missing[0]} for one: give a complete checkpoint")
    return module.eval()


@contextlib.contextmanager
def _told(name: str, what: str) -> Iterator[None]:
    """Around what transformers reads of a model: what it can't use is told in one line."""
    try:
        yield
    except _LOADING_ERRORS as error:
        if "trust_remote_code" in str(error):
            raise UsageError(f"model {name} brings Python code of its own, which is never run here: {ALLOWED_MODELS}") from error
        raise UsageError(f"model {name}: {what} ({first_line(error)}): {ALLOWED_MODELS}") from error


def _hub_answers(name: str) -> bool:
    """Whether the hub says anything at all about `name`."""
    request = urllib.request.Request(hf_hub_url(name, "config.json"), method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=_HUB_TIMEOUT_S):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # The hub's own client brings its certificates and may do better.
        return isinstance(error.reason, ssl.SSLError)
    except TimeoutError:
        return False
