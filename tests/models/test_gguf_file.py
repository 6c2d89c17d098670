"""GGUF files: weights and tokenizer come out as they went in; damaged files are refused; conversions are kept."""

import json
import threading
from pathlib import Path

import pytest
import torch
from gguf import GGUFWriter, TokenType
from torch import Tensor
from transformers import PreTrainedModel

from flexspec.errors import UsageError
from flexspec.models import gguf_file, load_model
from tiny_models import SPECIAL_TOKENS, TINY_POSITIONS, TINY_VOCAB, random_prompt, tiny, tiny_tokenizer

HEADS, KV_HEADS = 4, 2


@pytest.fixture(autouse=True)
def _cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny("llama")


@pytest.fixture
def path(model: PreTrainedModel, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_llama(path, model)
    return path


def _interleaved(weight: Tensor, heads: int) -> Tensor:
    """Query and key rows in GGUF's order: the two halves that rotate together are next to each other."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, -1).transpose(1, 2).reshape(weight.shape)


def write_llama(path: Path, model: PreTrainedModel, *, architecture: str = "llama", splits: str = "smollm", tokenizer: bool = True) -> None:
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(TINY_POSITIONS)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(TINY_VOCAB)
    if tokenizer:
        _write_tokenizer(writer, splits)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    weights = {"token_embd": model.model.embed_tokens.weight, "output_norm": model.model.norm.weight, "output": model.lm_head.weight}
    for index, layer in enumerate(model.model.layers):
        for ours, theirs in names.items():
            weights[f"blk.{index}.{theirs}"] = layer.get_submodule(ours).weight
    for name, weight in weights.items():
        if "attn_q" in name or "attn_k" in name:
            weight = _interleaved(weight, HEADS if "attn_q" in name else KV_HEADS)
        writer.add_tensor(f"{name}.weight", weight.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer: GGUFWriter, splits: str) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.convert_ids_to_tokens(list(range(TINY_VOCAB)))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(splits)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL_TOKENS else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) for merge in json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_pad_token_id(2)
    writer.add_chat_template(tokenizer.chat_template)


def logits(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([random_prompt(20)])).logits


@pytest.mark.parametrize("kept", [True, False])
def test_the_model_and_its_tokenizer_come_out_as_they_went_in(
    model: PreTrainedModel, path: Path, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(gguf_file, "CONVERT_LIMIT_BYTES", 0)
    loaded = load_model(path)
    assert torch.equal(logits(loaded.module), logits(model))
    assert (loaded.eos_token_ids, loaded.bos_token_id) == ((1,), 0)
    assert (loaded.vocab_size, loaded.max_positions) == (TINY_VOCAB, TINY_POSITIONS)
    assert (gguf_file.cache_home() / "converted").exists() == kept

    tokenizer, expected = loaded.tokenizer, tiny_tokenizer()
    assert tokenizer is not None
    text = "hello the ▁ 日本語 🎉\n  x<eos>"
    ids = tokenizer(text)["input_ids"]
    assert ids == expected(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text.removesuffix("<eos>")
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == ("<eos>", "<bos>", "<pad>")
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == expected.apply_chat_template(chat, tokenize=False)


def test_smollm_splits_before_every_digit(model: PreTrainedModel, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    write_llama(other, model, splits="gpt-2")
    pieces = [load_model(each).tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12") for each in (path, other)]
    assert [piece for piece, _ in pieces[0]] == ["a", "ĠĠ", "1", "2"]
    assert [piece for piece, _ in pieces[1]] == ["a", "Ġ", "Ġ12"]


def test_a_tokenizer_that_is_not_known_goes_through_transformers(model: PreTrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_llama(path, model, splits="of-their-own")
    tokenizer = load_model(path).tokenizer
    assert tokenizer.decode(tokenizer("hello 日本")["input_ids"]) == "hello 日本"
    assert (tokenizer.eos_token, tokenizer.bos_token, tokenizer.pad_token) == ("<eos>", "<bos>", "<pad>")


def test_a_file_without_a_tokenizer(model: PreTrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    write_llama(path, model, tokenizer=False)
    assert load_model(path).tokenizer is None


def test_a_conversion_is_made_once_and_again_when_the_file_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = gguf_file._read
    monkeypatch.setattr(gguf_file, "_read", lambda *arguments: reads.append(1) or read(*arguments))
    threads = [threading.Thread(target=gguf_file._converted, args=(path,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    load_model(path)
    assert len(reads) == 1
    changed = tiny("llama", seed=1)
    write_llama(path, changed)
    assert torch.equal(logits(load_model(path).module), logits(changed))


def test_an_interrupted_conversion_leaves_nothing_behind(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):

        def interrupted(self: object, folder: Path) -> None:
            folder.mkdir(parents=True)
            raise KeyboardInterrupt

        patch.setattr(PreTrainedModel, "save_pretrained", interrupted)
        load_model(path)
    assert [entry for entry in (gguf_file.cache_home() / "converted").iterdir() if entry.is_dir()] == []
    load_model(path)


@pytest.mark.parametrize("part", [0.001, 0.01, 0.1, 0.5, 0.99, 0.9999])
def test_a_file_cut_short(path: Path, part: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(UsageError, match=r"damaged or cut short.*fetch it again"):
        load_model(path)


def test_an_architecture_that_transformers_does_not_read(model: PreTrainedModel, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    write_llama(path, model, architecture="clip")
    with pytest.raises(UsageError, match=r"can't be loaded .*clip"):
        load_model(path)
