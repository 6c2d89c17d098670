"""Models for OpenVINO: what is traced equals the model, and the cache becomes state."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from flexspec.bench.openvino_export import _keep_past_inside, _WithPast, write_openvino
from flexspec.bench.peer import PeerUnavailable
from flexspec.models.loaded_model import describe
from tiny_models import TINY_VOCAB, Family, random_prompt, tiny


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_what_is_traced_equals_the_model_from_any_split_on(family: Family) -> None:
    module = tiny(family)
    ids = torch.tensor([random_prompt(9)])
    past: Any = [(torch.zeros(1, 2, 0, 8), torch.zeros(1, 2, 0, 8))] * 2
    logits = []
    with torch.no_grad():
        expected = module(ids).logits
        for start, end in ((0, 4), (4, 5), (5, 9)):
            outputs = _WithPast(module)(ids[:, start:end], torch.ones(1, end, dtype=torch.long), torch.arange(start, end)[None], past)
            logits.append(outputs[0])
            past = list(zip(outputs[1::2], outputs[2::2], strict=True))
            assert [tuple(keys.shape) for keys, _ in past] == [(1, 2, end, 8)] * 2
    torch.testing.assert_close(torch.cat(logits, 1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("gpt2", {}, "only models of the types llama, qwen2, qwen3 are converted to openvino, and this one is of type gpt2"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic rope scaling"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "attention to a part of the text"),
    ],
)
def test_others_are_refused(family: Family, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    loaded = describe("tiny", tiny(family, **options), None, TINY_VOCAB)
    with pytest.raises(PeerUnavailable, match=message):
        write_openvino(MagicMock(), loaded, tmp_path / "model")


def test_a_failing_conversion_is_a_reason(tmp_path: Path) -> None:
    def failing(module: Any, **_: Any) -> None:
        raise RuntimeError("Check failed\nno translation for aten::novelty\n")

    loaded = describe("tiny", tiny("llama"), None, TINY_VOCAB)
    with pytest.raises(PeerUnavailable, match="can't convert the model: no translation for aten::novelty"):
        write_openvino(SimpleNamespace(convert_model=failing), loaded, tmp_path / "model")


def test_the_cache_becomes_state_that_starts_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    passes, library, model = MagicMock(), MagicMock(), MagicMock()
    monkeypatch.setitem(sys.modules, "openvino", library)
    monkeypatch.setitem(sys.modules, "openvino.passes", passes)
    assert importlib.import_module("openvino.passes") is passes
    model.inputs = [MagicMock() for _ in range(5)]
    model.outputs = [MagicMock() for _ in range(3)]
    parameters, results = [MagicMock() for _ in range(5)], [MagicMock() for _ in range(3)]
    model.get_parameters.return_value, model.get_results.return_value = parameters, results
    reader, state, other = MagicMock(), MagicMock(), MagicMock()
    parameters[3].output.return_value.get_target_inputs.return_value = [reader]
    state.get_type_name.return_value = "ReadValue"
    model.get_ordered_ops.return_value = [other, state]
    _keep_past_inside(library, model, 2, 8)
    named = [port.get_tensor.return_value.set_names.call_args.args[0] for port in (*model.inputs[:3], model.outputs[0])]
    assert named == [{"input_ids"}, {"attention_mask"}, {"position_ids"}, {"logits"}]
    passes.MakeStateful.assert_called_once_with([(parameters[3], results[1]), (parameters[4], results[2])])
    reader.replace_source_output.assert_called_once_with(library.opset13.gather.return_value.output.return_value)
    state.set_arguments.assert_called_once_with([library.opset13.broadcast.return_value.output.return_value])
    other.set_arguments.assert_not_called()
