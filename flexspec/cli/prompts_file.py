"""Reading prompts from JSONL files, for `generate`, `bench` and `check`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError

_ALLOWED = 'give {"prompt": "text"} or {"id": 1, "category": "name", "turns": ["text"]}'
_NO_CATEGORY = "none"


@dataclass(frozen=True, kw_only=True)
class PromptRow:
    """One prompt of a file.

    Attributes:
        id: the row's own id, or its line number.
        category: the row's own category, or `none`.
        prompt: the text; of a conversation, the first turn.
        chat: True if it is what a user says in a conversation, and so wants the chat template; False if it is raw text.
    """

    id: str
    category: str
    prompt: str
    chat: bool


def read_prompts(path: str | Path) -> list[PromptRow]:
    """The prompts in a JSONL file, in its order; empty lines are skipped.

    Args:
        path: each line is `{"prompt": text}`, raw, or `{"id": …, "category": …, "turns": [text, …]}`, of which the first turn counts.

    Raises:
        UsageError: if the file can't be read or holds no prompts, or naming the first line that is not such a row.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"prompts file {str(path)!r} can't be read ({error.strerror}): give a JSONL file") from None
    except UnicodeDecodeError as error:
        raise UsageError(
            f"prompts file {str(path)!r} is not UTF-8 text ({error.reason} at byte {error.start}): give a JSONL file"
        ) from None
    # Only newlines end a line: other separators, such as U+2028, may stand inside JSON strings.
    rows = [_row(path, number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not rows:
        raise UsageError(f"prompts file {str(path)!r} holds no prompts: {_ALLOWED} on each line")
    return rows


def stratified(rows: Sequence[PromptRow], limit: int | None) -> list[PromptRow]:
    """The first `limit` rows in round robin over the categories, both in the order of the file; all rows if `limit` is None.

    Raises:
        UsageError: if `limit` is not positive.
    """
    if limit is None:
        return list(rows)
    if limit < 1:
        raise UsageError(f"limit={limit} is not allowed: give a number of prompts of at least 1")
    categories: dict[str, list[PromptRow]] = {}
    for row in rows:
        categories.setdefault(row.category, []).append(row)
    rounds = max((len(group) for group in categories.values()), default=0)
    dealt = [group[turn] for turn in range(rounds) for group in categories.values() if turn < len(group)]
    return dealt[:limit]


def _row(path: str | Path, number: int, line: str) -> PromptRow:
    where = f"prompts file {str(path)!r}, line {number}"
    try:
        content: Any = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: not JSON ({error}): {_ALLOWED}") from None
    if not isinstance(content, dict) or ("prompt" in content) == ("turns" in content):
        raise UsageError(f"{where}: {_shortened(line)} is not allowed: {_ALLOWED}")
    identity, category = content.get("id", number), content.get("category", _NO_CATEGORY)
    if not isinstance(identity, str | int) or not isinstance(category, str):
        raise UsageError(f"{where}: id {identity!r}, category {category!r} are not allowed: give a number or text, and text")
    chat = "turns" in content
    turns = content["turns"] if chat else [content["prompt"]]
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str):
        raise UsageError(f"{where}: {'turns' if chat else 'prompt'} of {_shortened(line)} is not text: {_ALLOWED}")
    return PromptRow(id=str(identity), category=category, prompt=turns[0], chat=chat)


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= 80 else line[:79] + "…"
