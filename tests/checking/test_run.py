"""A whole check of a tiny model: it passes when speculation is sound, and finds faults put in deliberately."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from flexspec.bench.prompt_text import PromptText
from flexspec.checking.config import CheckConfig
from flexspec.checking.equality import Difference
from flexspec.checking.row import CheckRow
from flexspec.checking.run import CheckResult, run_check
from flexspec.cli.check import check, doubt_of
from flexspec.errors import UsageError
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers import mss
from flexspec.runtime.verifiers.base import Verdict
from flexspec.runtime.verifiers.walk import WalkVerifier
from flexspec.tree_shape import TreeLimits, TreeSpec

app = typer.Typer()
app.command()(check)

TEXTS = [PromptText(id=text[:3], category="x", text=text, chat=False) for text in ("the cat and the hat", "one two")]


def run(model: str, *, samples: int = 120, **options: Any) -> CheckResult:
    config = CheckConfig(model=model, ssms=["prune:1"], dtype="float32", max_tokens=24, samples=samples, **{"tree": "2,1"} | options)
    return run_check(config, TEXTS, lambda _: None)


def failed(result: CheckResult) -> set[str]:
    return {row.test for row in result.rows if not row.lossless}


def test_sound_speculation_is_lossless(model_folder: str) -> None:
    result = run(model_folder)
    assert result.lossless, [row.detail for row in result.rows]
    static = TreeSpec(widths=(2, 1))
    walks = [(test, tree) for test in ("greedy", "coupled") for tree in (static, TreeLimits())]
    tests = [*walks, *((test, static) for test in ("mss", "without_replacement", "point_mass", "traversal"))]
    assert [(row.test, row.tree) for row in result.rows] == [test for test in tests for _ in TEXTS]
    # It says something only if drafts were both accepted and rejected; adaptive trees may find that none pays here.
    for test in {row.test for row in result.rows}:
        rows = [row for row in result.rows if (row.test, row.tree) == (test, static)]
        assert 0 < sum(row.accepted for row in rows) < sum(row.drafted for row in rows), test


def test_a_static_tree_is_chosen_where_the_given_one_is_adaptive(model_folder: str) -> None:
    result = run(model_folder, tree="depth=3,budget=4", verifiers=["greedy", "mss"], samples=1)
    static, adaptive = TreeSpec(widths=(2, 2, 1, 1)), TreeLimits(depth=3, budget=4)
    assert [(row.test, row.tree) for row in result.rows[::2]] == [("greedy", static), ("greedy", adaptive), ("mss", static)]


def test_a_verifier_that_accepts_a_wrong_token(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = WalkVerifier.verify

    def gullible(
        self: WalkVerifier, tree: TokenTree, logits: Callable[[int], torch.Tensor], sampler: RequestSampler, index: int
    ) -> Verdict:
        verdict = verify(self, tree, logits, sampler, index)
        child = next(iter(tree.children()[verdict.path[-1]].values()), None)
        if child is None:
            return verdict
        path = [*verdict.path, child]
        return Verdict(path=path, bonus=sampler.pick(logits(child), index + len(path) - 1))

    monkeypatch.setattr(WalkVerifier, "verify", gullible)
    result = run(model_folder, verifiers=["greedy", "coupled"])
    assert failed(result) == {"greedy", "coupled"}
    gaps = [row.difference.gap for row in result.rows if row.test == "greedy" and row.difference is not None]
    assert all(gap is not None and gap > 1e-3 for gap in gaps)  # no rounding noise: a fault


def test_rejection_that_forgets_the_residual(model_folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unchanged(p: Distribution, token: int, q: Distribution | None) -> tuple[Distribution, float]:
        return p, 1.0

    monkeypatch.setattr(mss, "residual", unchanged)
    result = run(model_folder, samples=400, verifiers=["mss"])
    assert failed(result) == {"mss"}


def test_nothing_to_check_without_drafters(model_folder: str) -> None:
    with pytest.raises(UsageError, match="give at least one --ssm"):
        run_check(CheckConfig(model=model_folder, ssms=[], dtype="float32"), TEXTS, lambda _: None)
    with pytest.raises(UsageError, match="samples=0"):
        run_check(CheckConfig(model=model_folder, samples=0), TEXTS, lambda _: None)
    with pytest.raises(UsageError, match="verifier='mms' is unknown: give one of greedy, coupled, mss"):
        run_check(CheckConfig(model=model_folder, verifiers=["mms"]), TEXTS, lambda _: None)


def test_exit_status_of_the_command(model_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the cat and the hat and the cat"}\n')
    results: list[CheckResult] = []

    def remembering(*arguments: Any) -> CheckResult:
        results.append(run_check(*arguments))
        return results[-1]

    monkeypatch.setattr("flexspec.checking.run.run_check", remembering)
    arguments = [model_folder, "--ssm", "ngram", "--prompts", str(prompts), "--dtype", "float32", "--max-tokens", "16"]
    arguments += ["--samples", "40", "--verifier", "coupled", "--verifier", "traversal"]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert "traversal, static trees\n" in result.output.replace(" \n", "\n").replace("  ", "")
    (p_value,) = (row.detail.split(", ")[0] for row in results[0].rows if row.p_value is not None)
    assert p_value in result.output and "is wanted" in result.output  # at 80 columns
    assert "row invariance" in result.output
    assert "static trees: ⟨2,2,1,1⟩" in result.output
    assert "checked: coupled, adaptive trees, 1 prompts, token for token" in result.output
    assert "checked: traversal, static trees, 1 prompts, the distribution" in result.output
    rows = [replace(results[0].rows[0], lossless=False, difference=Difference(position=3, plain=5, speculative=6, gap=0.25))]
    monkeypatch.setattr("flexspec.checking.run.run_check", lambda *_: replace(results[0], rows=rows))
    result = CliRunner().invoke(app, [model_folder, "--limit", "1"])
    assert result.exit_code == 1, result.output
    assert "NOT lossless" in result.output


def test_tests_that_say_little() -> None:
    row = CheckRow(test="greedy", tree=TreeLimits(), prompt="a", lossless=True, detail="", drafted=0, accepted=0)
    assert doubt_of([row]) == "nothing was drafted in these tests, so they say little"
    few = replace(row, drafted=500, accepted=4)
    assert doubt_of([row, few]) == "4 of 500 drafts were accepted in these tests, so they say little about acceptance"
    good = replace(row, drafted=10, accepted=5)
    assert doubt_of([few, good]) is None
    alike = replace(good, p_value=1.0)
    assert doubt_of([alike]) == "all texts fell into one cell in these tests, so they say little about the distribution"
    assert doubt_of([alike, replace(good, p_value=0.4)]) is None
