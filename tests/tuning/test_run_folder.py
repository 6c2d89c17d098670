"""A folder holds one run."""

import json
from pathlib import Path

import pytest

from flexspec.errors import UsageError
from flexspec.tuning.evaluation import HitRates
from flexspec.tuning.report import MemberReport, TuneReport
from flexspec.tuning.run_folder import RunFolder
from flexspec.tuning.trainer import Trained
from tuning_cases import config


def claimed(path: Path) -> RunFolder:
    folder = RunFolder(path, config(), resume=False)
    folder.claim("print")
    return folder


def report() -> TuneReport:
    rates = HitRates(by_depth=[[0.25, 0.5]], counts=[4])
    trained = Trained(steps=3, tokens=12, curve=[{"step": 1, "loss": 0.5}], rates=rates)
    member = MemberReport(folder="draft", parameters=7, trained=trained)
    return TuneReport(
        settings=config().to_json(),
        texts=80,
        held_out=2,
        answer_tokens=99,
        draft_vocabulary=(40, 0.5),
        members=[member],
        coverage=[[0.25]],
    )


def test_it_is_claimed_once_the_run_can_begin(tmp_path: Path) -> None:
    RunFolder(tmp_path / "a" / "b", config(), resume=False)
    assert list((tmp_path / "a" / "b").iterdir()) == [], "a mistake found until then leaves the folder free"
    claimed(tmp_path / "a" / "b")
    RunFolder(tmp_path / "a" / "b", config(), resume=True).claim("print")


def test_another_run_is_refused(tmp_path: Path) -> None:
    claimed(tmp_path)
    with pytest.raises(UsageError, match=r"--out '.*' holds another run: add --resume to go on with it, or give another folder"):
        RunFolder(tmp_path, config(), resume=False)
    with pytest.raises(
        UsageError, match=r"holds a run with kind='head', not 'ssm', minutes=None, not 3: give the same settings, or another"
    ):
        RunFolder(tmp_path, config("ssm", minutes=3), resume=True)
    with pytest.raises(UsageError, match="holds a run with another model or other prompts under the same names"):
        RunFolder(tmp_path, config(), resume=True).claim("another")


def test_there_must_be_something_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--resume: '.*' holds no run to go on with; leave out --resume to begin one"):
        RunFolder(tmp_path / "none", config(), resume=True)
    assert not (tmp_path / "none").exists()


def test_it_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"--out '.*' can't be written \(.*\): give another folder"):
            RunFolder(path, config(), resume=False)


@pytest.mark.parametrize("content", ["", "[]", '"text"', "{"])
def test_damaged_settings(tmp_path: Path, content: str) -> None:
    claimed(tmp_path)
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(UsageError, match=r"settings\.json' does not say which run --out .* holds"):
        RunFolder(tmp_path, config(), resume=True)


def test_settings_without_a_fingerprint_get_one(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text(json.dumps(config().to_json()))
    RunFolder(tmp_path, config(), resume=True).claim("print")
    with pytest.raises(UsageError, match="holds a run with another model or other prompts"):
        RunFolder(tmp_path, config(), resume=True).claim("another")
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(UsageError, match="holds a run with answer_tokens=None, not 24, "):
        RunFolder(tmp_path, config(), resume=True)


def test_a_report_is_read_back_while_its_draft_models_are_there(tmp_path: Path) -> None:
    folder = claimed(tmp_path)
    assert folder.report() is None
    folder.finish(report())
    assert folder.report() is None
    (tmp_path / "draft").mkdir()
    (tmp_path / "draft" / "drafter.json").write_text("")
    found = RunFolder(tmp_path, config(), resume=True).report()
    assert found == report() and found.to_json() == json.loads((tmp_path / "report.json").read_text())
    (tmp_path / "report.json").write_text('{"settings": {}}')
    with pytest.raises(UsageError, match=r"report\.json' is not a report of a tuning .*: remove it, and it is made again"):
        folder.report()
