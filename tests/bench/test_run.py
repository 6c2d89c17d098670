"""A whole benchmark of a tiny model."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flexspec.bench.config import BenchConfig
from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.measurement import GenerationSettings, Measurement
from flexspec.bench.prompt_selection import select_prompts
from flexspec.bench.prompt_text import PromptText
from flexspec.bench.run import run_bench
from flexspec.cli.bench import bench, warnings_of
from flexspec.codegen import compile as compile_module
from flexspec.codegen.cpu.native.build import NativeBuildError
from flexspec.errors import UsageError

app = typer.Typer()
app.command()(bench)


def text(content: str, *, chat: bool = False) -> PromptText:
    return PromptText(id=content[:3], category="all of them", text=content, chat=chat)


def test_json_of_the_command(model_folder: str, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    target = tmp_path / "bench.json"
    arguments = [model_folder, "--ssm", "prune:1", "--tree", "2,2,1,1", "--prompts", str(prompts_file), "--limit", "2", "--max-tokens"]
    arguments += ["12", "--dtype", "float32", "--against", "hf,llama.cpp", "--profile", "--json", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "llama.cpp was left out: llama_cpp is not installed" in result.output
    assert "bookkeeping" in result.output
    content = json.loads(target.read_text())
    assert {"machine", "versions", "rows", "ratios"} <= set(content)
    assert {"flexspec-plain/hf", "flexspec/flexspec-plain", "flexspec/hf"} == set(content["ratios"])
    for ratio in content["ratios"].values():
        assert ratio["low"] <= ratio["value"] <= ratio["high"]
    everything = {row["system"]: row for row in content["rows"] if row["category"] == "all"}
    assert set(everything) == {"flexspec-plain", "flexspec", "hf"}
    assert {row["new_tokens"] for row in everything.values()} == {24}  # two prompts: one of each category
    assert {row["category"] for row in content["rows"]} == {"all", "qa", "list"}
    plain, speculative = everything["flexspec-plain"], everything["flexspec"]
    assert (plain["drafters"], plain["tree"], plain["tokens_per_step"]) == ([], [], 1.0)
    assert (speculative["drafters"], speculative["tree"]) == (["prune:1"], [2, 2, 1, 1])
    assert speculative["tokens_per_step"] > 1
    assert all(row["tokens_per_s"] > 0 for row in content["rows"])


def test_a_compiler_that_fails_stops_it(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> None:
        raise NativeBuildError("g++ failed")

    monkeypatch.setattr(compile_module, "load_library", failing)
    # In a dtype of its own: the others compile once a session.
    config = BenchConfig(model=model_folder, ssms=[], dtype="bfloat16", settings=GenerationSettings(max_tokens=4))
    with pytest.warns(RuntimeWarning, match="could not be built"), pytest.raises(UsageError, match=r"can't be measured: g\+\+ failed"):
        run_bench(config, [text("hello")], lambda what: None)


def test_every_system_gets_the_same_token_ids(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[tuple[int, ...]]] = {}
    run = FlexspecSystem.run

    def noting(self: FlexspecSystem, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        seen.setdefault(self.name, []).extend(tuple(prompt) for prompt in prompts)
        return run(self, prompts, seed)

    monkeypatch.setattr(FlexspecSystem, "run", noting)
    config = BenchConfig(model=model_folder, ssms=["ngram"], dtype="float32", settings=GenerationSettings(max_tokens=4))
    result = run_bench(config, [text("hello", chat=True), text("the the")], lambda _: None)
    assert sorted(seen["flexspec"]) == sorted(seen["flexspec-plain"])
    assert result.llm.tokenizer is not None
    assert "[user]hello\n[assistant]" in {result.llm.tokenizer.decode(list(ids)) for ids in seen["flexspec"]}
    # A step a token but the first, the first from prefill; the warm-up is not counted.
    assert result.profiles["flexspec-plain"].steps == 2 * 3
    assert result.left_out == {}


def test_what_could_not_be_measured_is_named(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BenchConfig(model=model_folder, ssms=[], dtype="float32", settings=GenerationSettings(max_tokens=4))
    result = run_bench(config, [text("the"), text("z" * 600)], lambda _: None)
    assert result.too_long == ["zzz"]
    assert {row.system for row in result.rows} == {"flexspec-plain"}
    assert warnings_of(result) == ["1 prompts were left out, too long for the model: zzz"]
    with pytest.raises(UsageError, match="none of the 1 prompts"):
        select_prompts(result.llm, [text("z" * 600)], [], room=508, batch=1, warm_up=1)
    with pytest.raises(UsageError, match="1 prompts are too few for batch=2"):
        select_prompts(result.llm, [text("the"), text("z" * 600)], [], room=508, batch=2, warm_up=1)
    selection = select_prompts(result.llm, [text("the")], [text("hat"), text("z" * 600)], room=508, batch=1, warm_up=2)
    assert [prompt.id for group in selection.warm_up for prompt in group.prompts] == ["hat", "hat"]  # never one that is measured
    # A fallback is never passed over in silence.
    monkeypatch.setattr("flexspec.cli.bench._NATIVE_TARGET", "cpu-imaginary")
    assert "NOT on cpu-imaginary" in warnings_of(result)[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"against": ["vllm"]}, r"peer='vllm' is unknown: give one of hf, hf-lookup, llama\.cpp"),
        ({"settings": GenerationSettings(max_tokens=4, temperature=-1)}, "temperature=-1"),
        ({"batch": 0}, "batch=0 is not allowed"),
        ({"warm_up": 0}, "warm-up=0 is not allowed"),
        ({"batch": 2, "against": ["hf"]}, r"batch=2 is not allowed with peers \(hf\)"),
        ({"repeat": 2, "ssms": ["ngram", "suffix:history"]}, "repeat=2 is not allowed with suffix:history"),
        ({"also_trees": ["2,1"], "ssms": []}, "also-tree='2,1' needs a drafter"),
        ({"also_trees": ["2,1", "2, 1"], "ssms": ["ngram"]}, "also-tree='2, 1' is measured already"),
        ({"also_trees": ["2,1"], "tree": "2,1", "ssms": ["ngram"]}, "also-tree='2,1' is measured already"),
        ({"also_trees": ["auto"], "verifier": "mss", "ssms": ["ngram"]}, "verifier='mss' does not allow adaptive trees"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(options: dict[str, Any], message: str) -> None:
    config = BenchConfig(**{"model": "/nowhere", "settings": GenerationSettings(max_tokens=4)} | options)
    with pytest.raises(UsageError, match=message):
        run_bench(config, [text("a")], lambda _: None)


def test_new_tokens_that_leave_no_room_for_a_prompt(model_folder: str) -> None:
    for count in (512, 100_000):
        config = BenchConfig(model=model_folder, ssms=[], dtype="float32", settings=GenerationSettings(max_tokens=count))
        with pytest.raises(UsageError, match=f"max-tokens={count} is too large: .* at most 512 tokens.* give at most 511"):
            run_bench(config, [text("a")], lambda _: None)


def test_further_trees_in_batches_with_a_chart(model_folder: str, prompts_file: Path, tmp_path: Path) -> None:
    target, chart = tmp_path / "bench.json", tmp_path / "acceptance.svg"
    arguments = [model_folder, "--ssm", "prune:1", "--ssm", "ngram", "--tree", "auto", "--also-tree", "2,1", "--also-tree", "1,1,1"]
    arguments += ["--prompts", str(prompts_file), "--batch", "2", "--repeat", "2", "--max-tokens", "8", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*arguments, "--plot", str(chart), "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "1 prompts were left out, too few for another group: 2" in result.output
    assert "median speed counts, the slower one of the two in the middle" in " ".join(result.output.split())
    assert "Adaptive trees go on learning" in result.output and "2 prompts at a time" in result.output
    assert chart.read_bytes().startswith(b"<?xml")
    content = json.loads(target.read_text())
    assert set(content["ratios"]) == {
        "flexspec/flexspec-plain",
        "flexspec/flexspec 2,1",
        "flexspec/flexspec 1,1,1",
        "flexspec 2,1/flexspec-plain",
        "flexspec 1,1,1/flexspec-plain",
    }
    assert (content["ratios_by_category"], content["interrupted"], content["settings"]["batch"]) == ({}, False, 2)
    (sample,) = content["samples"]
    assert sample["prompts"] == ["0", "1"]
    for measured in sample["measurements"].values():
        assert (measured["new_tokens"], measured["decode_tokens"]) == (16, 14)
    drafts = content["drafts"]["flexspec 2,1"]
    assert {"prune:1", "ngram"} == set(drafts["by_drafter"]) == set(drafts["by_depth_of_drafter"])
    assert sum(depth["accepted"] for depth in drafts["by_depth"]) > 0


def test_ctrl_c_leaves_what_was_measured(model_folder: str, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    run = FlexspecSystem.run

    def impatient(self: FlexspecSystem, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        runs.append(self.name)
        if len(runs) == 3:  # one warms up, the next is measured
            raise KeyboardInterrupt
        return run(self, prompts, seed)

    monkeypatch.setattr(FlexspecSystem, "run", impatient)
    target = tmp_path / "bench.json"
    arguments = [model_folder, "--ssm", "none", "--prompts", str(prompts_file), "--max-tokens", "4", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*arguments, "--json", str(target)])
    assert result.exit_code == 130, result.output
    assert "interrupted: these are the results of the first 1 prompts" in result.output
    content = json.loads(target.read_text())
    assert content["interrupted"] and len(content["samples"]) == 1
