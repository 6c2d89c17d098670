"""Draft models that come with flexspec, by name."""

from pathlib import Path

import pytest

from flexspec.models import shipped


def test_names_are_folders_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b/head", "a/ssm", "a/head"):
        (tmp_path / "shipped" / name).mkdir(parents=True)
    (tmp_path / "shipped" / "a" / "card.md").write_text("")
    monkeypatch.setattr("importlib.resources.files", lambda package: tmp_path)
    assert shipped.shipped_names() == ["a:head", "a:ssm", "b:head"]
    assert shipped.shipped_folder("a:ssm") == tmp_path / "shipped" / "a" / "ssm"
    for name in ("a:none", "a", "", "../shipped:a", "a:head/.."):
        assert shipped.shipped_folder(name) is None
