"""A tiny LLaMA with a tokenizer in a folder, as a command line names it.

Its next tokens are as certain as a trained model's: a flat distribution would spread the samples of a chi-square test too thin.
"""

import pytest
import torch

from compile_once import compile_once
from tiny_models import tiny, tiny_tokenizer

__all__ = ["compile_once"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checking") / "tiny-llama"
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(5)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)
