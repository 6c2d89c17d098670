"""Every example runs as written."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from tiny_models import tiny, tiny_tokenizer

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    tiny("llama", layers=1).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"generate", "custom_drafter", "custom_pass", "json_schema", "onnx_model"}


def test_generate(model: str) -> None:
    outputs = example("generate").main(model)
    assert len(outputs) == 2 and all(len(output.token_ids) == 48 for output in outputs)


def test_custom_drafter(model: str) -> None:
    plain, drafted = example("custom_drafter").main(model)
    assert drafted.token_ids == plain.token_ids
    assert 0 < drafted.stats.accepted < drafted.stats.drafted


def test_custom_pass(model: str) -> None:
    matches, difference = example("custom_pass").main(model)
    assert matches == 3 and difference < 1e-4


def test_json_schema(model: str) -> None:
    module = example("json_schema")
    greedy, sampled, sentence = module.main(model)
    for output in (greedy, sampled):
        assert list(json.loads(output.text)) == module.SCHEMA["required"]
    assert greedy.text != sampled.text
    assert re.fullmatch(r"Paris is (in|near) [A-Z][a-z]{2,12}\.", sentence.text)


@pytest.mark.filterwarnings("ignore")  # of PyTorch's exporter
def test_onnx_model(model: str) -> None:
    outputs = example("onnx_model").main(model, layers=1)
    assert len(outputs) == 2 and all(len(output.token_ids) == 48 for output in outputs)
