"""`flexspec inspect`."""

import json
from pathlib import Path

import pytest

from flexspec.api.inspection import inspect_model
from flexspec.cli.main import main
from flexspec.errors import UsageError
from tiny_models import TINY_VOCAB, Family, tiny


def test_json_and_tables(capsys: pytest.CaptureFixture[str], model_folder: str, tmp_path: Path) -> None:
    report = tmp_path / "inspect.json"
    assert main(["inspect", model_folder, "--json", str(report)]) == 0
    content = json.loads(report.read_text(encoding="utf-8"))
    shown = capsys.readouterr().out
    assert content["model"] == model_folder
    assert content["operators_before"]["aten.linear.default"] == 8  # q, k, v, o, gate, up, down, head
    assert content["operators_after"]["flexspec.packed_linear.default"] == 5  # qkv, o, gate and up, down, head
    assert sum(content["operators_after"].values()) < sum(content["operators_before"].values())
    matched = {note["name"]: (note["matches"], note["expected"]) for note in content["passes"]}
    assert matched["recognise_norm"] == (3, 3) and matched["lower_attention"] == (1, 1)
    assert set(content["lowering"]["implementations"]) >= {"flexspec.tree_attention.default", "flexspec.packed_linear.default"}
    assert "aten.linear.default" in shown and "recognise_rope" in shown and content["lowering"]["target"] in shown


def test_sizes_are_those_of_the_config() -> None:
    layers, hidden, heads, kv_heads, head_dim, inner = 2, 32, 4, 2, 8, 64
    inspection = inspect_model(tiny("llama", layers=layers, tie_word_embeddings=True), dtype="float32")
    linears = layers * (hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner) + hidden * TINY_VOCAB
    assert inspection.parameters == pytest.approx(linears + (2 * layers + 1) * hidden, abs=head_dim)  # norms; rotary frequencies
    assert inspection.weight_bytes == {"float32": 4 * inspection.parameters, "bfloat16": 2 * inspection.parameters}
    assert inspection.flops_per_token == {context: 2 * linears + context * layers * 4 * heads * head_dim for context in (1, 1024)}
    stored = {dtype: size // itemsize for (dtype, size), itemsize in zip(inspection.kv_bytes_per_token.items(), (4, 2), strict=True)}
    assert set(stored.values()) == {stored["float32"]} and stored["float32"] >= 2 * layers * kv_heads * head_dim
    assert inspection.blocks == 1


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_products_count_however_the_model_writes_them(family: Family) -> None:
    module = tiny(family)
    embeddings = ("embed_tokens", "embed_positions", "wte", "wpe")
    inside = [
        p.numel() for name, p in module.named_parameters() if p.dim() == 2 and not any(part in name for part in (*embeddings, "lm_head"))
    ]
    products = sum(inside) + module.get_output_embeddings().weight.numel()
    layers, hidden = module.config.num_hidden_layers, module.config.hidden_size
    assert inspect_model(module, dtype="float32").flops_per_token[1] == 2 * products + layers * 4 * hidden


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="dtype='half'"):
        inspect_model(tiny("llama"), dtype="half")
