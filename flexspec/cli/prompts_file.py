"""Reading prompts from JSONL files, for `generate`, `bench` and `check`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flexspec.bench.prompt_text import PromptText
from flexspec.errors import UsageError

_ALLOWED = 'give {"prompt": "text"} or {"id": 1, "category": "name", "turns": ["text"]}'
_NO_CATEGORY = "none"


def read_prompts(path: str | Path) -> list[PromptText]:
    """The prompts in a JSONL file, in its order; empty lines are skipped.

    Args:
        path: each line is `{"prompt": text}`, raw, or `{"id": …, "category": …, "turns": [text, …]}`, of which the first turn counts;
            without an id the line number is taken, without a category `none`.

    Raises:
        UsageError: if the file can't be read or holds no prompts, or naming the first line that is not such a row.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
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


def stratified(rows: Sequence[PromptText], limit: int | None) -> list[PromptText]:
    """The first `limit` rows in round robin over the categories, both in the order of the file; all rows if `limit` is None.

    Raises:
        UsageError: if `limit` is not positive.
    """
    return choose(rows, limit)[0]


def choose(rows: Sequence[PromptText], limit: int | None, skip: int = 0) -> tuple[list[PromptText], list[PromptText]]:
    """The rows from `skip` on, `limit` of them, in round robin over the categories as `stratified` has it, and all other rows.

    Without either the first are all rows, in their own order.

    Raises:
        UsageError: if `limit` is not positive, `skip` is negative, or it leaves nothing.
    """
    if skip < 0:
        raise UsageError(f"skip={skip} is not allowed: give a number of prompts of at least 0")
    if limit is None and not skip:
        return list(rows), []
    if limit is not None and limit < 1:
        raise UsageError(f"limit={limit} is not allowed: give a number of prompts of at least 1")
    dealt = _dealt(rows)
    if skip >= len(dealt):
        raise UsageError(f"skip={skip} leaves none of the {len(dealt)} prompts: give a smaller number")
    end = len(dealt) if limit is None else skip + limit
    return dealt[skip:end], dealt[:skip] + dealt[end:]


def _dealt(rows: Sequence[PromptText]) -> list[PromptText]:
    categories: dict[str, list[PromptText]] = {}
    for row in rows:
        categories.setdefault(row.category, []).append(row)
    rounds = max((len(group) for group in categories.values()), default=0)
    return [group[turn] for turn in range(rounds) for group in categories.values() if turn < len(group)]


def _row(path: str | Path, number: int, line: str) -> PromptText:
    where = f"prompts file {str(path)!r}, line {number}"
    try:
        content: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
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
    return PromptText(id=str(identity), category=category, text=turns[0], chat=chat)


def _shortened(line: str) -> str:
    line = line.strip()
    return line if len(line) <= 80 else line[:79] + "…"
