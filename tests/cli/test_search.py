"""`flexspec search`: what it writes and shows, and how it refuses."""

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig

import flexspec
from flexspec import load_strategy
from flexspec.cli.main import main
from tiny_models import tiny

FIELDS = ["choice", "predicted", "baseline", "runner_up", "pareto", "candidates", "pruned", "unused_devices", "seconds"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a configuration and no weights."""
    folder = tmp_path_factory.mktemp("model")
    LlamaConfig(
        hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8
    ).save_pretrained(folder)
    return str(folder)


def test_a_search_is_written_exported_explained_and_compared(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, strategy, chart = tmp_path / "out.json", tmp_path / "strategy.json", tmp_path / "front.svg"
    arguments = ["search", model, "--ssm", "suffix", "--ssm", "prune:2", "--hardware", "a10gx4", "--json", str(out)]
    assert main([*arguments, "--export-strategy", str(strategy), "--plot", str(chart), "--top", "3"]) == 0
    shown = capsys.readouterr().out
    assert "on a10gx4" in shown and "runner-up" in shown and "none is measured" in shown and "What binds" in shown
    content = json.loads(out.read_text())
    assert list(content) == FIELDS
    assert content["predicted"]["ms_per_token"] <= content["baseline"]["ms_per_token"] and chart.stat().st_size > 1000
    assert content["unused_devices"] == 4 - content["choice"]["devices"]
    saved = load_strategy(strategy)
    assert (saved.parallel.tp, saved.drafters) == (content["choice"]["tp"], tuple(content["choice"]["drafters"]))
    for file in (out, strategy):
        assert main(["search", "--explain", str(file)]) == 0
        assert "runner-up" in capsys.readouterr().out
    assert main(["search", "--diff", str(out), str(strategy)]) == 0
    assert "1.00" in capsys.readouterr().out


def test_the_same_from_python(model: str) -> None:
    result = flexspec.search(model, [], "a10gx4", objective="throughput", batch=4, max_tree=0)
    assert result.strategy.parallel.world_size + result.unused_devices == 4
    assert result.choice.predicted.tokens_per_s >= result.baseline.predicted.tokens_per_s  # type: ignore[union-attr]
    with pytest.raises(flexspec.UsageError, match="ssms='ngram' is not allowed: give a list"):
        flexspec.search(model, "ngram", "a10gx4")
    with pytest.raises(flexspec.UsageError, match="ssm 'ngram' is given twice"):
        flexspec.search(model, ["ngram", "ngram"], "a10gx4")
    with pytest.raises(flexspec.UsageError, match=r"^model <LlamaForCausalLM> is not allowed in a search: give its configuration \(module"):
        flexspec.search(tiny("llama"), [], "a10gx4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "MODEL is missing: give a model, or --explain FILE, or --diff A B"),
        (["MODEL"], "--hardware is missing: give a JSON file, or one of a10gx4"),
        (["FOLDER", "--hardware", "h100x9"], "hardware 'h100x9' is unknown: give one of"),
        (["./missing", "--hardware", "a10gx4"], "model './missing' does not exist: give"),
        (["missing.onnx", "--hardware", "a10gx4"], "model 'missing.onnx' does not exist: give"),
        (["FOLDER", "--hardware", "a10gx4", "--objective", "speed"], "objective='speed' is not allowed: give one of latency, throughput"),
        (["FOLDER", "--hardware", "a10gx4", "--batch", "0"], "batch=0 is not allowed"),
        (["FOLDER", "--hardware", "a10gx4", "--top", "0"], "top=0 is not allowed"),
        (["FOLDER", "--hardware", "a10gx4", "--dtype", "int8"], "dtype='int8' is not allowed on hardware a10gx4: give one of"),
        (["FOLDER", "--hardware", "a10gx4", "--ssm", "prune:33"], "prune:33 is not allowed: "),
        (["FOLDER", "--hardware", "a10gx4", "--ssm", "prune:1.5"], "ssm 'prune:1.5' is not allowed: give prune:K"),
        (["FOLDER", "--hardware", "a10gx4", "--ssm", "./missing"], "ssm './missing' is neither a drafter (ngram"),
        (["FOLDER", "--hardware", "a10gx4", "--ssm", "smollm2-135m:head"], "was made for a model of hidden size 576"),
        (["FOLDER", "--hardware", "a10gx4", "--acceptance", "missing.json"], "statistics file 'missing.json' can't be read"),
        (["FOLDER", "--hardware", "a10gx4", "--plot", "front.txt"], "--plot 'front.txt' is not allowed"),
        (["FOLDER", "--explain", "out.json"], "MODEL is not allowed with --explain or --diff"),
        (["--context", "5", "--explain", "out.json"], "--context is not allowed with --explain or --diff"),
        (["--explain", "missing.json"], "report 'missing.json' can't be read"),
    ],
)
def test_a_mistake_is_one_line(model: str, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["search", *(model if argument == "FOLDER" else argument for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert message in captured.err
