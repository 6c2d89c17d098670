"""load_model: what each way of naming a model gives."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flexspec.errors import UsageError
from flexspec.models import load_model
from tiny_models import FAMILIES, TINY_POSITIONS, TINY_VOCAB, Family, random_prompt, tiny, tiny_tokenizer


def logits(module: nn.Module, length: int = 20) -> Tensor:
    with torch.no_grad():
        return module(torch.tensor([random_prompt(length)])).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_saved_model_and_its_tokenizer(family: Family, tmp_path: Path) -> None:
    original = tiny(family)
    original.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert torch.equal(logits(loaded.module), logits(original))
    assert not loaded.module.training
    assert (loaded.name, loaded.vocab_size, loaded.max_positions) == (str(tmp_path), TINY_VOCAB, TINY_POSITIONS)
    assert loaded.tokenizer is not None
    text = "hello 日本 🎉"
    assert loaded.tokenizer(text)["input_ids"] == tiny_tokenizer()(text)["input_ids"]
    assert loaded.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False) == "[user]Hi\n"
    assert (loaded.eos_token_ids, loaded.bos_token_id) == ((1,), 0)  # from the tokenizer: the model has none


def test_a_folder_without_tokenizer_files(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path))
    assert loaded.tokenizer is None
    assert loaded.token_id_limit == loaded.vocab_size
    assert load_model(tmp_path, tokenizer=tiny_tokenizer()).tokenizer is not None


def test_a_module_is_left_as_it_was_and_shares_its_weights() -> None:
    given = tiny("llama").train()
    loaded = load_model(given)
    assert given.training
    assert not loaded.module.training
    assert loaded.module is not given
    assert loaded.module.lm_head.weight is given.lm_head.weight
    assert (loaded.name, loaded.tokenizer) == ("LlamaForCausalLM", None)


def test_a_module_in_another_dtype_is_converted_in_the_copy_only() -> None:
    given = tiny("qwen2").to(torch.bfloat16)
    loaded = load_model(given, dtype=torch.float32)
    assert {parameter.dtype for parameter in given.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in loaded.module.parameters()} == {torch.float32}
    assert torch.equal(loaded.module.lm_head.weight, given.lm_head.weight.float())


def test_bfloat16_from_a_folder_is_the_rounded_float32(tmp_path: Path) -> None:
    original = tiny("llama")
    original.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=torch.bfloat16)
    for name, parameter in loaded.module.named_parameters():
        assert torch.equal(parameter, original.get_parameter(name).to(torch.bfloat16))


def test_end_of_sequence_ids_come_from_the_generation_config_first() -> None:
    model = tiny("llama", eos_token_id=7)
    assert load_model(model, tokenizer=tiny_tokenizer()).eos_token_ids == (7,)
    model.generation_config.eos_token_id = [5, 9]
    assert load_model(model, tokenizer=tiny_tokenizer()).eos_token_ids == (5, 9)
    assert load_model(tiny("llama")).eos_token_ids == ()
    assert load_model(tiny("llama")).bos_token_id is None


def test_padding_rows_are_told_from_tokens() -> None:
    loaded = load_model(tiny("llama", vocab=TINY_VOCAB + 128), tokenizer=tiny_tokenizer())
    assert (loaded.vocab_size, loaded.token_id_limit) == (TINY_VOCAB + 128, TINY_VOCAB)


class PlainDecoder(nn.Module):
    """No Hugging Face class and no config: each position sees the mean of what came before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        sums = self.embedding(input_ids).cumsum(1)
        return self.head(sums / (position_ids[..., None] + 1))


def test_a_plain_module_has_no_limit_and_no_special_tokens() -> None:
    loaded = load_model(PlainDecoder())
    assert (loaded.name, loaded.vocab_size, loaded.max_positions, loaded.eos_token_ids) == ("PlainDecoder", 8, None, ())


def test_something_else_than_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match=r"model 3 is a int: give"):
        load_model(3)  # type: ignore[arg-type]


def test_a_rank_s_weights_stay_in_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise AssertionError("running the model would read all of it")

    tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("flexspec.models.load.checked_vocab_size", refuse)
        loaded = load_model(tmp_path, in_parts=True)
    whole = load_model(tmp_path)
    assert loaded.vocab_size == whole.vocab_size == TINY_VOCAB
    for part, parameter in zip(loaded.module.parameters(), whole.module.parameters(), strict=True):
        assert part.dtype == torch.bfloat16 and _mapped_file(part.data_ptr()) == str(tmp_path / "model.safetensors")
        assert torch.equal(part.float(), parameter)


def _mapped_file(address: int) -> str:
    """The file whose contents lie at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[-1]
    raise AssertionError("no memory there")
