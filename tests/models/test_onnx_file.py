"""An ONNX file as a model: the facts beside it, and generation with it as target and as drafter."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import flexspec
from flexspec.errors import UsageError
from flexspec.models.load import load_model
from onnx_decoders import VOCAB, Form, decoder, reference_logits, saved

PROMPTS = [[5], [7, 3, 60, 22], list(range(40, 69))]
TOKENS = 12


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(decoder(Form(positions="input", cache=True)), tmp_path)


def write(path: Path, name: str, content: object) -> None:
    (path.parent / name).write_text(json.dumps(content))


def test_facts_come_from_the_graph_and_the_files_beside_it(path: Path) -> None:
    loaded = load_model(path)
    assert (loaded.vocab_size, loaded.eos_token_ids, loaded.max_positions, loaded.tokenizer) == (VOCAB, (), None, None)
    write(path, "config.json", {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": VOCAB, "eos_token_id": 3})
    write(path, "genai_config.json", {"model": {"context_length": 48, "eos_token_id": [3, 9], "decoder": {"num_key_value_heads": 2}}})
    loaded = load_model(path)
    assert (loaded.eos_token_ids, loaded.max_positions) == ((3,), 48)
    write(path, "genai_config.json", {"model": {"context_length": 5}})
    write(path, "config.json", {"max_position_embeddings": True, "eos_token_id": True})
    loaded = load_model(path)
    assert (loaded.eos_token_ids, loaded.max_positions) == ((), 5)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", {"vocab_size": 300}, "its graph has vocab_size 96, but config.json beside it says vocab_size 300"),
        ("config.json", {"num_key_value_heads": 4}, "num_key_value_heads 2, but config.json beside it says num_key_value_heads 4"),
        ("genai_config.json", {"model": {"decoder": {"num_hidden_layers": 3}}}, "num_hidden_layers 2, but genai_config.json"),
        ("config.json", {"model_type": "gpt2", "n_layer": 7}, "num_hidden_layers 2, but config.json beside it says n_layer 7"),
        ("config.json", {"max_position_embeddings": -1}, "beside it is -1; it must be 1 at the least"),
        ("config.json", ["not", "an", "object"], "holds list, not an object"),
    ],
)
def test_files_that_contradict_the_graph_are_refused(path: Path, file: str, content: object, message: str) -> None:
    write(path, file, content)
    with pytest.raises(UsageError, match=message):
        load_model(path)


def test_files_that_contradict_each_other_are_refused(path: Path) -> None:
    write(path, "config.json", {"eos_token_id": 3, "max_position_embeddings": 64})
    write(path, "genai_config.json", {"model": {"eos_token_id": 4}})
    with pytest.raises(UsageError, match=r"eos_token_id is \[3\] in config.json and \[4\] in genai_config.json"):
        load_model(path)
    write(path, "genai_config.json", {"model": {"context_length": 128}})
    with pytest.raises(UsageError, match=r"max_position_embeddings\) 64, genai_config.json \(context_length\) 128"):
        load_model(path)


def test_generation_with_and_without_speculation_is_what_the_graph_says(path: Path) -> None:
    """The ONNX model as target and a PyTorch module as drafter, and the reverse."""
    module = load_model(path).module
    expected = [_greedy(path, prompt) for prompt in PROMPTS]
    assert len({token for tokens in expected for token in tokens}) >= 15
    for target, ssms in ((path, []), (path, ["suffix", module]), (module, [path])):
        llm = flexspec.compile(target, ssms=ssms, dtype="float32", max_len=64)
        outputs = llm.generate(PROMPTS, flexspec.SamplingParams(max_tokens=TOKENS, temperature=0.0))
        assert [list(output.token_ids) for output in outputs] == expected
        if module in ssms or path in ssms:
            assert all(output.stats.tokens_per_step > 2 for output in outputs)


def _greedy(path: Path, prompt: list[int]) -> list[int]:
    model = decoder(Form(positions="input", cache=True))
    ids = list(prompt)
    for _ in range(TOKENS):
        ids.append(int(reference_logits(model, np.array([ids]))[0, -1].argmax()))
    return ids[len(prompt) :]


def test_weights_keep_the_asked_dtype(path: Path) -> None:
    module = load_model(path, dtype=torch.bfloat16).module
    assert {one.dtype for one in module.parameters()} == {torch.bfloat16}
