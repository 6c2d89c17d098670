"""Prompts from JSONL files."""

import json
from pathlib import Path
from typing import Any

import pytest

from flexspec.bench.prompt_text import PromptText
from flexspec.cli.prompts_file import choose, read_prompts, stratified
from flexspec.errors import UsageError


def write(tmp_path: Path, *lines: Any) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    return path


def test_raw_prompts_and_first_turns(tmp_path: Path) -> None:
    rows = [{"prompt": "a\u2028b"}, "", {"id": 81, "category": "qa", "turns": ["first", "second"]}, {"id": "x", "prompt": "", "extra": 1}]
    assert read_prompts(write(tmp_path, *rows)) == [
        PromptText(id="1", category="none", text="a\u2028b", chat=False),
        PromptText(id="81", category="qa", text="first", chat=True),
        PromptText(id="x", category="none", text="", chat=False),
    ]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    assert [row.text for row in read_prompts(write(tmp_path, '\ufeff{"prompt": "a"}\r', '{"prompt": "\ufeff"}'))] == ["a", "\ufeff"]


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "cut',
        '"text"',
        "[]",
        '{"text": "other key"}',
        '{"prompt": "both", "turns": ["both"]}',
        '{"prompt": 3}',
        '{"turns": []}',
        '{"turns": "text"}',
        '{"turns": [{"role": "user"}]}',
        '{"prompt": "a", "category": 3}',
        '{"prompt": "a", "id": []}',
        pytest.param("[" * 100_000, id="too deep"),
    ],
)
def test_a_broken_line_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, {"prompt": "fine"}, "", line, {"prompt": "fine"})
    with pytest.raises(UsageError, match=r"prompts\.jsonl', line 3: .*give"):
        read_prompts(path)


def test_files_that_hold_no_prompts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.jsonl' can't be read \(No such file"):
        read_prompts(tmp_path / "missing.jsonl")
    with pytest.raises(UsageError, match="can't be read"):
        read_prompts(tmp_path)
    with pytest.raises(UsageError, match="holds no prompts"):
        read_prompts(write(tmp_path, "", " "))
    (tmp_path / "binary").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(UsageError, match="not UTF-8"):
        read_prompts(tmp_path / "binary")


def test_stratified_deals_in_turn_from_each_category() -> None:
    rows = [
        PromptText(id=f"{category}{index}", category=category, text="", chat=True)
        for category, count in (("a", 4), ("b", 1), ("c", 2))
        for index in range(count)
    ]
    assert [row.id for row in stratified(rows, 5)] == ["a0", "b0", "c0", "a1", "c1"]
    assert [row.id for row in stratified(rows, 100)] == ["a0", "b0", "c0", "a1", "c1", "a2", "a3"]
    assert stratified(rows, None) == rows
    with pytest.raises(UsageError, match="limit=0"):
        stratified(rows, 0)


def test_one_half_can_be_kept_for_choosing() -> None:
    rows = [PromptText(id=f"{category}{index}", category=category, text="", chat=True) for category in "ab" for index in range(3)]

    def ids(limit: int | None, skip: int) -> tuple[str, str]:
        chosen, others = choose(rows, limit, skip)
        return " ".join(row.id for row in chosen), " ".join(row.id for row in others)

    assert ids(2, 2) == ("a1 b1", "a0 b0 a2 b2")
    assert ids(None, 4) == ("a2 b2", "a0 b0 a1 b1")
    assert ids(2, 0) == ("a0 b0", "a1 b1 a2 b2")
    assert choose(rows, None) == (rows, [])
    with pytest.raises(UsageError, match="skip=6 leaves none of the 6 prompts"):
        choose(rows, 1, 6)
    with pytest.raises(UsageError, match="skip=-1"):
        choose(rows, 1, -1)
