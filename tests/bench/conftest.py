"""A tiny LLaMA with a tokenizer in a folder, as a command line names it, and prompts in a file."""

import json
from pathlib import Path

import pytest

from compile_once import compile_once
from tiny_models import tiny, tiny_tokenizer

__all__ = ["compile_once"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("bench") / "tiny-llama"
    tiny("llama").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    texts = [("qa", "the cat and the hat and the cat"), ("qa", "one one two"), ("list", "in the ring in the ring")]
    lines = [json.dumps({"id": number, "category": category, "turns": [text]}) for number, (category, text) in enumerate(texts)]
    path.write_text("\n".join(lines))
    return path
