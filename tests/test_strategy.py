"""What a strategy holds, and the file that it is saved in."""

from pathlib import Path

import pytest

from flexspec import Strategy, UsageError, load_strategy


def test_a_path_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    strategy = Strategy(dtype="float32")
    with pytest.raises(UsageError, match=r"missing/a\.json'.*No such file or directory; give a path"):
        strategy.save(tmp_path / "missing" / "a.json")
    with pytest.raises(UsageError, match="Is a directory"):
        strategy.save(tmp_path)
    with pytest.raises(UsageError, match="null"):
        strategy.save("a\0b")


def test_a_file_nested_too_deeply_is_not_json(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match=r"deep\.json' is not JSON"):
        load_strategy(path)


def test_the_largest_pass() -> None:
    assert Strategy(dtype="float32", buckets=(1, 65536)).buckets == (1, 65536)
    with pytest.raises(UsageError, match=r"buckets=\[1, 65537\] is not allowed: .* at most 65536"):
        Strategy(dtype="float32", buckets=(1, 65537))
