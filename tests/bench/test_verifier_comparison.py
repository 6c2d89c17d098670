"""Verifiers compared on equal trees, with a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from flexspec.bench.contenders import ComparisonConfig, Contender
from flexspec.bench.prompt_text import PromptText
from flexspec.bench.verifier_comparison import compare_verifiers
from flexspec.cli.acceptance import acceptance
from flexspec.errors import UsageError

app = typer.Typer()
app.command()(acceptance)

TEXTS = [PromptText(id=text[:3], category="x", text=text, chat=False) for text in ("the cat and the hat", "one two")]
SAMPLERS = ["point_mass", "mss", "without_replacement", "traversal"]


def test_table_of_the_command(model_folder: str, prompts_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "acceptance.json"
    arguments = [model_folder, "--ssm", "prune:1", "--prompts", str(prompts_file), "--limit", "2", "--tree", "2,1", "--dtype", "float32"]
    arguments += ["--temperature", "0.5", "--temperature", "1", "--max-tokens", "8", "--json", str(target)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "learned \N{GREEK SMALL LETTER ALPHA}" in result.output and "drafted" in result.output
    content = json.loads(target.read_text())
    coupled = [f"coupled, alpha {alpha}" for alpha in ("0.5", "1", "learned")]
    assert [row["contender"] for row in content["rows"]] == ["naive sampling", *SAMPLERS, *coupled] * 2
    assert [row["temperature"] for row in content["rows"]] == [0.5] * 8 + [1.0] * 8
    assert content["reference"] == "coupled, alpha learned" and content["settings"]["tree"] == [2, 1]
    for row in content["rows"]:
        assert 1 <= row["tokens_per_step"]["value"] <= 3
        assert 0 <= row["acceptance"]["low"] <= row["acceptance"]["value"] <= row["acceptance"]["high"] <= 1
        assert (row["ratio"] is None) == bool(row["learned_alphas"]) == (row["contender"] == content["reference"])
        assert (row["over_naive"] is None) == (row["contender"] == "naive sampling")
        assert 0 < row["drafted_per_step"] <= 4
        assert row["tokens"] == 14  # the first of each text comes from prefill


def test_a_self_draft_that_trusts_the_noise_is_always_right(model_folder: str) -> None:
    config = ComparisonConfig(
        model=model_folder, ssms=["prune:2"], dtype="float32", tree="1,1", temperatures=[1.0], alphas=[1.0], max_tokens=10, repeat=2
    )
    result = compare_verifiers(config, TEXTS, lambda _: None)
    rows = {row.verifier: row for row in result.rows}
    assert all(row.over_naive is None for row in result.rows)  # naive sampling was not asked for
    assert result.reference == "coupled, alpha 1"
    assert rows["coupled"].tokens_per_step.value == 3.0 and rows["coupled"].acceptance.value == 1.0
    assert rows["traversal"].acceptance.value == rows["mss"].acceptance.value == 1.0  # p = q


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tree": "auto"}, "tree='auto' is not allowed: verifiers are compared on equal trees"),
        ({"temperatures": [0.0]}, "all above 0"),
        ({"temperatures": []}, "give at least one"),
        ({"alphas": [1.5]}, "alpha=1.5 is not allowed"),
        ({"ssms": []}, "nothing to compare without drafters"),
        ({"batch": 0}, "batch=0"),
    ],
)
def test_mistakes_are_found_before_anything_is_compiled(options: dict[str, Any], message: str) -> None:
    config = ComparisonConfig(**{"model": "/nowhere", "tree": "2,1", "temperatures": [1.0], "ssms": ["ngram"]} | options)
    with pytest.raises(UsageError, match=message):
        compare_verifiers(config, TEXTS, lambda _: None)


def test_an_alpha_that_is_none(model_folder: str, prompts_file: Path) -> None:
    result = CliRunner().invoke(app, [model_folder, "--prompts", str(prompts_file), "--alpha", "some"])
    assert isinstance(result.exception, UsageError) and "alpha='some' is not allowed" in str(result.exception)


def test_names() -> None:
    assert [str(Contender(verifier="coupled", alpha=alpha)) for alpha in (0.5, None)] == ["coupled, alpha 0.5", "coupled, alpha learned"]
    assert str(Contender(verifier="coupled", alpha=0.0)) == "naive sampling"
    assert str(Contender(verifier="mss")) == "mss"
