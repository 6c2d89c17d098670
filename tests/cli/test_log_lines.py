"""`--log-every` and `--statistics`."""

import json
import logging
from pathlib import Path

import pytest

from flexspec.acceptance import AcceptanceTable
from flexspec.cli.log_lines import log_lines
from flexspec.cli.main import main

Capture = pytest.CaptureFixture[str]


def generate(model_folder: str, *options: str) -> int:
    return main(["generate", model_folder, "--prompt", "one two", "--ssm", "ngram", "--dtype", "float32", "--max-len", "512", *options])


def test_lines_go_to_stderr_while_asked_for(capsys: Capture) -> None:
    logger = logging.getLogger("flexspec")
    with log_lines(None):
        logger.info("unseen")
    with log_lines(5.0):
        logger.info("seen")
        logger.debug("unseen")
    logger.info("unseen")
    assert capsys.readouterr().err.endswith(" seen\n") and not logger.handlers and logger.level == logging.NOTSET


def test_generate_shows_lines_and_keeps_statistics(capsys: Capture, model_folder: str, tmp_path: Path) -> None:
    statistics, known = tmp_path / "statistics.json", AcceptanceTable()
    known.of("ssm").record(0, 0, 1, True)
    known.save(statistics)
    options = ["--tree", "2,1", "--max-tokens", "40", "--statistics", str(statistics), "--log-every", "0.000001"]
    assert generate(model_folder, *options) == 0
    shown = capsys.readouterr().err
    assert shown.count(" tokens/s, ") > 3 and shown.splitlines()[-1].startswith("40 tokens")
    drafters = json.loads(statistics.read_text())["drafters"]
    assert drafters["ssm"] == [[-1, 0, 1, 1.0, 1.0], [0, 0, 1, 1.0, 1.0]] and drafters["ngram"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--log-every", "0"], "log_every_s=0"),
        (["--statistics", "/nowhere/at/all.json"], "--statistics"),
        (["--tree", "depth=0"], "tree depth=0"),
    ],
)
def test_mistakes_are_one_line(capsys: Capture, model_folder: str, options: list[str], message: str) -> None:
    assert generate(model_folder, *options) == 2
    assert message in capsys.readouterr().err
