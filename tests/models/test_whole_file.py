"""Files that are there as a whole or not at all."""

from pathlib import Path

import pytest

from flexspec.errors import UsageError
from flexspec.models.whole_file import write_text_whole, write_whole


def test_a_file_and_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    for content in ("one", "zwei: ü"):
        write_text_whole(path, content)
        assert path.read_text(encoding="utf-8") == content and [one.name for one in path.parent.iterdir()] == ["b.json"]


def test_what_was_there_stays_if_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_text_whole(path, "whole")

    def fail(partial: Path) -> None:
        partial.write_text("ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(UsageError, match=r"a\.json' can't be written \(.*No space left.*\): make room there, or give another folder"):
        write_whole(path, fail)
    assert path.read_text() == "whole" and len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UsageError, match="can't be written"):
        write_text_whole(path / "below.json", "")
