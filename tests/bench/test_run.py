"""A whole benchmark of a tiny model."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from flexspec.bench.config import BenchConfig
from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.measurement import GenerationSettings, Measurement
from flexspec.bench.notes import warnings_of
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.bench.peers import PEERS, Peer
from flexspec.bench.prompt_selection import select_prompts
from flexspec.bench.prompt_text import PromptText
from flexspec.bench.run import run_bench
from flexspec.cli.bench import bench
from flexspec.codegen.cpu.native_model import NativeModel
from flexspec.codegen.lowering import LoweringReport
from flexspec.errors import UsageError
from flexspec.models.draft_folder import save_draft
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.tuning.config import DraftModelSettings
from flexspec.tuning.draft_models import new_member, state_names

app = typer.Typer()
app.command()(bench)


def text(content: str, *, chat: bool = False) -> PromptText:
    return PromptText(id=content[:3], category="all of them", text=content, chat=chat)


def test_json_of_the_command(model_folder: str, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    target = tmp_path / "bench.json"
    arguments = [model_folder, "--ssm", "prune:1", "--tree", "2,2,1,1", "--prompts", str(prompts_file), "--limit", "2", "--max-tokens"]
    arguments += ["12", "--dtype", "float32", "--against", "hf,hf-assisted,llama.cpp", "--profile", "--save", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "llama.cpp was left out: llama_cpp is not installed" in result.output
    assert "bookkeeping" in result.output
    saved = json.loads(target.read_text())
    assert (saved["format"], saved["version"]) == ("flexspec-bench", 1)
    (content,) = saved["results"]
    assert {"date", "machine", "versions", "rows", "ratios"} <= set(content)
    ours = ("flexspec", "flexspec-plain")
    assert {"flexspec/flexspec-plain", *(f"{one}/{peer}" for one in ours for peer in ("hf", "hf-assisted"))} == set(content["ratios"])
    for ratio in content["ratios"].values():
        assert ratio["low"] <= ratio["value"] <= ratio["high"]
    everything = {row["system"]: row for row in content["rows"] if row["category"] == "all"}
    assert list(everything) == ["flexspec", "flexspec-plain", "hf", "hf-assisted"]
    assert result.output.index("flexspec ") < result.output.index("flexspec-plain ") < result.output.index("hf ")
    assert max(map(len, result.output.splitlines())) > 80  # nothing is cut where nobody looks on
    assert {row["new_tokens"] for row in everything.values()} == {24}  # two prompts: one of each category
    assert {row["category"] for row in content["rows"]} == {"all", "qa", "list"}
    plain, speculative = everything["flexspec-plain"], everything["flexspec"]
    assert (plain["drafters"], plain["tree"], plain["tokens_per_step"]) == ([], [], 1.0)
    assert (speculative["drafters"], speculative["tree"]) == (["prune:1"], [2, 2, 1, 1])
    assert speculative["tokens_per_step"] > 1
    assert all(row["tokens_per_s"] > 0 for row in content["rows"])


def test_a_compiler_that_fails_stops_it(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BenchConfig(model=model_folder, ssms=[], dtype="float32", settings=GenerationSettings(max_tokens=4))
    compiled: Any = run_bench(config, [text("hello")], lambda _: None).llm.plan.llm.model  # which is compiled once a session
    failed = LoweringReport(target="cpu-torch", reason="g++ failed", compile_failed=True)
    monkeypatch.setattr(compiled, "lowering", failed)
    with pytest.raises(UsageError, match=r"can't be measured: g\+\+ failed"):
        run_bench(config, [text("hello")], lambda _: None)


def test_every_system_gets_the_same_token_ids(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[tuple[int, ...]]] = {}
    run_system = FlexspecSystem.run

    def noting(self: FlexspecSystem, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        seen.setdefault(self.name, []).extend(tuple(prompt) for prompt in prompts)
        return run_system(self, prompts, seed)

    monkeypatch.setattr(FlexspecSystem, "run", noting)
    config = BenchConfig(model=model_folder, ssms=["ngram"], dtype="float32", settings=GenerationSettings(max_tokens=4))
    run = run_bench(config, [text("hello", chat=True), text("the the")], lambda _: None)
    (result,) = run.results
    assert sorted(seen["flexspec"]) == sorted(seen["flexspec-plain"])
    assert run.llm.tokenizer is not None
    assert "[user]hello\n[assistant]" in {run.llm.tokenizer.decode(list(ids)) for ids in seen["flexspec"]}
    # A step a token but the first, the first from prefill; the warm-up is not counted.
    assert result.step_times["flexspec-plain"].steps == 2 * 3
    assert result.left_out == {}


def test_what_could_not_be_measured_is_named(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fallback is never passed over in silence.
    monkeypatch.setattr("flexspec.bench.hot_path._NATIVE_TARGET", "cpu-imaginary")
    config = BenchConfig(model=model_folder, ssms=[], dtype="float32", settings=GenerationSettings(max_tokens=4))
    run = run_bench(config, [text("the"), text("z" * 600)], lambda _: None)
    (result,) = run.results
    assert result.too_long == ["zzz"]
    assert result.systems == ["flexspec-plain"]
    too_long, slow = warnings_of(run.results)
    assert too_long == "1 prompt was left out, too long for the model: zzz" and "NOT on cpu-imaginary" in slow
    with pytest.raises(UsageError, match="none of the 1 prompts"):
        select_prompts(run.llm, [text("z" * 600)], [], room=508, batch=1, warm_up=1)
    with pytest.raises(UsageError, match="1 prompts are too few for batch=2"):
        select_prompts(run.llm, [text("the"), text("z" * 600)], [], room=508, batch=2, warm_up=1)
    selection = select_prompts(run.llm, [text("the")], [text("hat"), text("z" * 600)], room=508, batch=1, warm_up=2)
    assert [prompt.id for group in selection.warm_up for prompt in group.prompts] == ["hat", "hat"]  # never one that is measured


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"against": ["vllm"]}, r"peer='vllm' is unknown: give one of hf, hf-lookup, "),
        ({"settings": GenerationSettings(max_tokens=4, temperature=-1)}, "temperature=-1"),
        ({"batches": [2, 0]}, "batch=2,0 is not allowed"),
        ({"batches": [2, 2]}, "batch=2,2 is not allowed"),
        ({"batches": []}, "batch= is not allowed"),
        ({"batches": [1, 2]}, "1 prompts are too few for batch=2"),
        ({"warm_up": 0}, "warm-up=0 is not allowed"),
        ({"batches": [2, 4], "against": ["hf"]}, r"batch=2,4 is not allowed with peers \(hf\)"),
        ({"repeat": 2, "ssms": ["ngram", "suffix:history"]}, "repeat=2 is not allowed with suffix:history"),
        ({"batches": [1, 2], "also": ["suffix:history@2"]}, "batch=1,2 is not allowed with suffix:history"),
        ({"also": ["@2,1"], "ssms": []}, "also='@2,1' needs drafters"),
        ({"also": ["@2,1", "ngram@2, 1"], "ssms": ["ngram"]}, "also='ngram@2, 1' is measured already"),
        ({"also": ["ngram"], "tree": "2,1", "ssms": ["ngram"]}, "also='ngram' is measured already"),
        ({"also": ["@auto"], "ssms": ["ngram"]}, "also='@auto' is measured already"),
        ({"also": ["@auto"], "verifier": "mss", "ssms": ["ngram"]}, "verifier='mss' does not allow adaptive trees"),
        ({"synthetic_acceptance": 1.5}, r"synthetic-acceptance=1\.5 is not allowed"),
        ({"synthetic_acceptance": 0.5, "ssms": ["ngram"]}, "takes the place of drafters: leave out --ssm ngram"),
        ({"synthetic_acceptance": 0.5, "verifier": "mss"}, r"synthetic-acceptance=0\.5 is not allowed with verifier='mss'"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(options: dict[str, Any], message: str) -> None:
    config = BenchConfig(**{"model": "/nowhere", "settings": GenerationSettings(max_tokens=4)} | options)
    with pytest.raises(UsageError, match=message):
        run_bench(config, [text("a")], lambda _: None)


def test_a_category_must_not_be_called_as_all_together(model_folder: str) -> None:
    texts = [replace(text("a"), category=category) for category in ("all", "qa")]
    config = BenchConfig(model=model_folder, settings=GenerationSettings(max_tokens=4))
    with pytest.raises(UsageError, match="category 'all' is not allowed"):
        run_bench(config, texts, lambda _: None)


def test_new_tokens_that_leave_no_room_for_a_prompt(model_folder: str) -> None:
    for count in (512, 100_000):
        config = BenchConfig(model=model_folder, ssms=[], dtype="float32", settings=GenerationSettings(max_tokens=count))
        with pytest.raises(UsageError, match=f"max-tokens={count} is too large: .* at most 512 tokens.* give at most 511"):
            run_bench(config, [text("a")], lambda _: None)


def test_further_systems_in_batches_of_several_sizes(model_folder: str, prompts_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    arguments = [model_folder, "--ssm", "prune:1", "--tree", "auto", "--also", "@2,1", "--also", "ngram+prune:1@1,1,1", "--also", "suffix"]
    arguments += ["--prompts", str(prompts_file), "--batch", "1,2", "--repeat", "2", "--max-tokens", "8", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*arguments, "--save", str(target)])
    assert result.exit_code == 0, result.output
    assert "batch 2: 1 prompt was left out, too few for another group: 2" in result.output
    assert "median speed counts, the slower one of the two in the middle" in result.output
    assert "Adaptive trees go on learning" in result.output and "2 prompts at a time" in result.output
    assert "prefill told apart, batch 1" in result.output and "prefill told apart, batch 2" in result.output
    alone, together = json.loads(target.read_text())["results"]
    names = ["flexspec", "flexspec-plain", "@2,1", "ngram+prune:1@1,1,1", "suffix"]
    for content, batch in ((alone, 1), (together, 2)):
        assert content["settings"]["batch"] == batch and content["settings"]["batches"] == [1, 2]
        assert [row["system"] for row in content["rows"] if row["category"] == "all"] == names
        others = names[2:]
        assert set(content["ratios"]) == {
            "flexspec/flexspec-plain",
            *(f"flexspec/{other}" for other in others),
            *(f"{other}/flexspec-plain" for other in others),
        }
    assert [len(sample["prompts"]) for sample in alone["samples"]] == [1, 1, 1]
    (sample,) = together["samples"]
    assert [prompt["id"] for prompt in sample["prompts"]] == ["0", "1"]
    for measured in sample["measurements"].values():
        assert (measured["new_tokens"], measured["decode_tokens"]) == (16, 14)
    assert set(alone["drafts"]["@2,1"]) == {"all", "qa", "list"}
    drafts = alone["drafts"]["ngram+prune:1@1,1,1"]["all"]
    assert set(drafts["drafters"]) == {"prune:1", "ngram"} and drafts["hits"]
    assert sum(depth["accepted"] for depth in drafts["by_depth"]) > 0


@pytest.fixture
def assistants(monkeypatch: pytest.MonkeyPatch) -> list[LoadedModel | None]:
    """What `hf-assisted` would have drafted with, each time that it is asked for."""
    found: list[LoadedModel | None] = []

    def unavailable(task: PeerTask) -> Any:
        found.append(task.assistant)
        raise PeerUnavailable("just looking")

    monkeypatch.setitem(PEERS._things, "hf-assisted", Peer(make=unavailable, packages=[]))
    return found


def test_each_ssm_is_compiled_once_and_what_is_the_main_systems_stays_so(
    model_folder: str, tmp_path: Path, assistants: list[LoadedModel | None]
) -> None:
    config = BenchConfig(
        model=model_folder,
        ssms=["ngram"],
        also=["prune:1@2", "prune:1+ngram@1,1"],
        against=["hf-assisted"],
        dtype="float32",
        settings=GenerationSettings(max_tokens=6),
        statistics=tmp_path / "statistics.json",
    )
    run = run_bench(config, [text("the the the the")], lambda _: None)
    (result,) = run.results
    assert [compilation.name for compilation in run.llm.plan.ssms] == ["prune:1"]
    assert result.settings["drafters"] == ["ngram"]
    assert [times.drafters_run_models for times in result.step_times.values()] == [False, False, True, True]
    assert [assistant.name for assistant in assistants if assistant] == ["prune:1"]
    assert result.left_out == {"hf-assisted": "just looking"}
    run.llm.save_statistics()
    learned = (tmp_path / "statistics.json").read_text()
    assert "ngram" in learned and "prune:1" not in learned


def test_draft_models_in_folders(
    model_folder: str, tmp_path: Path, assistants: list[LoadedModel | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = load_model(model_folder, dtype=torch.float32)
    tokens = torch.arange(3, 203)
    for kind, name in (("head", "a@b+c,d"), ("ssm", "ssm")):
        states = state_names(llm.module, kind)
        settings = DraftModelSettings(kind=kind, layers=1)
        member = new_member(llm, settings, token_ids=tokens, states=states, seed=0)
        save_draft(tmp_path / name, member.description, member.objective.weights(), tokens)
    head, ssm = str(tmp_path / "a@b+c,d"), str(tmp_path / "ssm")
    running, asking = [""], set()
    run_system, hidden_states = FlexspecSystem.run, NativeModel.hidden_states

    def naming(self: FlexspecSystem, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        running[0] = self.name
        return run_system(self, prompts, seed)

    def noting(self: NativeModel, rows: Any) -> Any:
        asking.add(running[0])
        return hidden_states(self, rows)

    monkeypatch.setattr(FlexspecSystem, "run", naming)
    monkeypatch.setattr(NativeModel, "hidden_states", noting)
    config = BenchConfig(
        model=model_folder,
        ssms=[head],
        tree="2,1",
        also=[f"suffix+{head}@1", f"{ssm}@2"],
        against=["hf-assisted"],
        dtype="float32",
        settings=GenerationSettings(max_tokens=6),
    )
    (result,) = run_bench(config, [text("the the the the")], lambda _: None).results
    both, alone = config.also
    assert [row.drafters for row in result.rows] == [[head], [], ["suffix", head], [ssm]]
    assert set(result.drafts) == {"flexspec", both, alone}
    # What the heads read costs plain decoding nothing.
    assert asking >= {"flexspec", both} and not asking & {"flexspec-plain", alone}
    (assistant,) = assistants
    assert assistant is not None and (assistant.name, assistant.vocab_size) == (ssm, 288)  # untrimmed
    run_bench(replace(config, also=[]), [text("the the")], lambda _: None)
    assert assistants[1] is None  # a head is no model by itself


def test_synthetic_acceptance_is_told(model_folder: str, prompts_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "bench.json"
    arguments = [model_folder, "--synthetic-acceptance", "1", "--tree", "1,1,1", "--also", "@2", "--prompts", str(prompts_file)]
    arguments += ["--max-tokens", "9", "--temperature", "1", "--dtype", "float32", "--save", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "The acceptance is SYNTHETIC" in result.output
    (content,) = json.loads(target.read_text())["results"]
    main, plain, other = (row for row in content["rows"] if row["category"] == "all")
    assert (main["drafters"], main["tree"], plain["drafters"], other["system"]) == (["synthetic"], [1, 1, 1], [], "@2")
    assert main["tokens_per_step"] == 3.0  # 1 from prefill, then 4 and 4
    assert (content["settings"]["synthetic_acceptance"], content["undrafted"]) == (1.0, 0.0)


def test_help_names_every_peer() -> None:
    shown = "".join(CliRunner().invoke(app, ["--help"]).output.replace("\u2502", "").split())
    assert f"separatedbycommas:{','.join(PEERS.names())}." in shown


def test_ctrl_c_leaves_what_was_measured(model_folder: str, prompts_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    run_system = FlexspecSystem.run

    def impatient(self: FlexspecSystem, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        runs.append(self.name)
        if len(runs) == 3:  # one warms up, the next is measured
            raise KeyboardInterrupt
        return run_system(self, prompts, seed)

    monkeypatch.setattr(FlexspecSystem, "run", impatient)
    target = tmp_path / "bench.json"
    arguments = [model_folder, "--ssm", "none", "--prompts", str(prompts_file), "--max-tokens", "4", "--dtype", "float32", "--batch"]
    result = CliRunner().invoke(app, [*arguments, "1,3", "--save", str(target)])
    assert result.exit_code == 130, result.output
    assert "interrupted: these are the results of the first prompt" in result.output
    assert "interrupted: nothing was measured with batch 3" in result.output
    (content,) = json.loads(target.read_text())["results"]
    assert content["interrupted"] and len(content["samples"]) == 1
