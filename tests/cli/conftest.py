"""A tiny model in a folder, for commands that take a model's name."""

from pathlib import Path

import pytest
from transformers.utils import logging as hf_logging

import flexspec
from compile_once import compile_once
from tiny_models import tiny, tiny_tokenizer

__all__ = ["compile_once"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A one-layer LLaMA with a chat template and positions enough to be interrupted."""
    folder: Path = tmp_path_factory.mktemp("tiny")
    hf_logging.disable_progress_bar()
    tiny("llama", layers=1, max_position_embeddings=1 << 17).save_pretrained(folder)
    hf_logging.enable_progress_bar()
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def plain_llm(model_folder: str) -> flexspec.LLM:
    """The tiny model compiled without drafters."""
    return flexspec.compile(model_folder, ssms=[], dtype="float32", max_len=512)
