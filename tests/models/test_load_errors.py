"""Bad models: one line that names the value, what is allowed and the fix."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertLMHeadModel, LlamaModel, T5Config, T5ForConditionalGeneration

from flexspec.errors import UsageError
from flexspec.models import load_model, pretrained
from flexspec.models.load import load_outline
from tiny_models import TINY_VOCAB, tiny, tiny_tokenizer


def refusal(model: object, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        load_model(model, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert any(word in message for word in ("give", "fetch", "call"))
    return message


def bert() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=64))


def t5() -> T5ForConditionalGeneration:
    return T5ForConditionalGeneration(T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=64))


def test_an_unknown_name_while_the_hub_is_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_hub_answers", lambda name: False)
    message = refusal("smolm2-135m")
    assert "'smolm2-135m'" in message
    assert "smollm2-135m" in message
    assert "can't be reached" in message


def test_an_unknown_name_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_repository(name: str, **options: object) -> None:
        raise OSError(f"{name} is not a valid model identifier\nIf this is a private repository, ...")

    monkeypatch.setattr(pretrained, "_hub_answers", lambda name: True)
    monkeypatch.setattr(pretrained.AutoConfig, "from_pretrained", no_such_repository)
    assert "nobody/nothing is not a valid model identifier" in refusal("nobody/nothing")


_NO_MODELS = [
    "no such name!",
    "",
    "./nowhere",
    "/no/where",
    "~/nowhere",
    "~nobody/x",
    "a/b/c",
    "nowhere.gguf",
    "nowhere.onnx",
    "NOWHERE.ONNX",
]


@pytest.mark.parametrize("name", _NO_MODELS)
def test_names_that_cannot_be_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(name: str) -> bool:
        raise AssertionError(f"the hub was asked for {name}")

    monkeypatch.setattr(pretrained, "_hub_answers", asked)
    assert repr(name) in refusal(name)
    with pytest.raises(UsageError, match=r"does not exist|is unknown") as caught:
        load_outline(name)
    assert repr(name) in str(caught.value)


def test_names_while_the_hub_is_out_of_reach_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "_hub_answers", lambda name: False)
    with pytest.raises(UsageError, match="'nobody/nothing' is neither here nor on the Hugging Face hub, which can't be reached"):
        load_outline("nobody/nothing")
    assert "tokenizer 'nobody/nothing' is neither here nor" in refusal(tiny("llama"), tokenizer="nobody/nothing")
    assert "tokenizer './nowhere' is unknown: give a folder" in refusal(tiny("llama"), tokenizer="./nowhere")


def test_what_prints_itself_on_many_lines_is_named_by_its_type() -> None:
    assert refusal(tiny("llama").config).startswith("model <LlamaConfig> is a LlamaConfig: give")


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    assert "no config.json" in refusal(tmp_path)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    tiny("llama").config.save_pretrained(tmp_path)
    assert str(tmp_path) in refusal(tmp_path)


def test_a_folder_with_a_broken_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    assert str(tmp_path) in refusal(tmp_path)


def test_weights_cut_short(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert str(tmp_path) in refusal(tmp_path)


def test_missing_weights_are_not_made_up(tmp_path: Path) -> None:
    tiny("llama", layers=1).save_pretrained(tmp_path)
    tiny("llama", layers=2).config.save_pretrained(tmp_path)
    assert "lacks 9 of its weights, model.layers.1." in refusal(tmp_path)


def test_a_broken_tokenizer(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer" in refusal(tmp_path)


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}'
    )
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    assert "code of its own, which is never run" in refusal(tmp_path)


@pytest.mark.parametrize(("make", "architecture"), [(bert, "BertForMaskedLM"), (t5, "T5ForConditionalGeneration")])
def test_other_architectures(make: Callable[[], nn.Module], architecture: str, tmp_path: Path) -> None:
    model = make()
    assert architecture in refusal(model)
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    message = refusal(tmp_path)
    assert "not a decoder-only language model" in message
    assert str(tmp_path) in message


def test_an_encoder_in_a_language_model_class_is_found_out() -> None:
    assert "see later ones" in refusal(BertLMHeadModel(bert().config).eval())


def test_a_decoder_without_a_head() -> None:
    assert "no logits" in refusal(LlamaModel(tiny("llama").config))


def test_a_module_that_takes_no_tokens() -> None:
    assert "failed with RuntimeError" in refusal(nn.Linear(6, TINY_VOCAB))


class Failing(nn.Module):
    """Its forward, beside a draw of logits, does whatever it is told."""

    def __init__(self, also: Callable[[], object]) -> None:
        super().__init__()
        self.also = also

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        self.also()
        return torch.rand((*input_ids.shape, 8))


@pytest.mark.parametrize(
    ("also", "message"),
    [
        (lambda: {}["rope"], "failed with KeyError: 'rope'"),
        (lambda: [].pop(), "failed with IndexError"),
        (lambda: 1 // 0, "failed with ZeroDivisionError"),
        (lambda: None, "gives other logits each time it runs on the same tokens: part of it is random; call its .eval()"),
    ],
)
def test_what_a_forward_does_wrong_is_said(also: Callable[[], object], message: str) -> None:
    assert message in refusal(Failing(also))


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("not a model")
    assert "not a GGUF file" in refusal(path)
    path.write_bytes(b"GGUF123")
    assert "damaged or cut short (its header ends early)" in refusal(path)
    with pytest.raises(UsageError, match="its header ends early"):
        load_outline(path)
