"""`flexspec generate --json-schema` and `--regex`."""

import json
from pathlib import Path

import pytest

from flexspec.cli.main import main

Capture = pytest.CaptureFixture[str]


def test_the_text_keeps_to_the_grammar(capsys: Capture, model_folder: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["the", 12, "日本"]}', encoding="utf-8")
    options = ["--prompt", "one two", "--ssm", "ngram", "--max-len", "512", "--dtype", "float32"]
    assert main(["generate", model_folder, *options, "--json-schema", str(schema)]) == 0
    assert json.loads(capsys.readouterr().out) in ("the", 12, "日本")
    assert main(["generate", model_folder, *options, "--regex", "(on|in){3}!"]) == 0
    assert capsys.readouterr().out.rstrip("\n")[-1] == "!"


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("{}", ["--regex", "a"], "can't both hold"),
        ("{", [], "schema.json' is not JSON (Expecting"),
        ("[1]", [], "schema.json' is not a JSON object: give a JSON Schema file"),
        (None, [], "can't be read"),
    ],
)
def test_mistakes_are_found_before_the_model_is_loaded(
    capsys: Capture, tmp_path: Path, content: str | None, options: list[str], message: str
) -> None:
    schema = tmp_path / "schema.json"
    if content is not None:
        schema.write_text(content, encoding="utf-8")
    assert main(["generate", "no-such-model", "--prompt", "a", "--json-schema", str(schema), *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1
