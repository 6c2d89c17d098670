"""Reports of searches in files: what `flexspec search --json` wrote, or the strategies that it exported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError
from flexspec.strategy import read_strategy

_WRITTEN = "give a file that `flexspec search` wrote with --export-strategy or --json"
_NUMBERS = ("step_ms", "tokens_per_step", "ms_per_token", "tokens_per_s", "memory_gb_per_device")
_COUNTS = ("dp", "pp", "tp", "tree_size")


def read_report(path: str | Path) -> dict[str, Any]:
    """The report of a search.

    Raises:
        UsageError: if the file can't be read, holds none, or one that is damaged.
    """
    name = str(path)
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"report {name!r} can't be read: {error.strerror}; {_WRITTEN}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"report {name!r} is not JSON: {error}; {_WRITTEN}") from None
    if isinstance(content, dict) and "choice" not in content and "version" in content:
        content = read_strategy(path)[1]
        if content is None:
            raise UsageError(f"strategy file {name!r} has no report of a search: {_WRITTEN}")
    _check(content, name)
    return dict(content)


def _check(content: Any, name: str) -> None:
    if not isinstance(content, Mapping) or not isinstance(content.get("choice"), Mapping):
        raise UsageError(f"report {name!r} is not one of a search: the field 'choice' is missing; {_WRITTEN}")
    predicted = content.get("predicted")
    if not isinstance(predicted, Mapping) or not isinstance(predicted.get("parts"), Mapping):
        raise UsageError(f"report {name!r} is damaged: the field 'predicted' with its 'parts' is missing; {_WRITTEN}")
    others = [one for key in ("baseline", "runner_up", "incremental") if (one := content.get(key)) is not None]
    front = content.get("pareto", [])
    if not isinstance(front, list) or not isinstance(content.get("pruned", {}), Mapping):
        raise UsageError(f"report {name!r} is damaged: the fields 'pareto' and 'pruned' are not a list and a mapping; {_WRITTEN}")
    for one in ({**content["choice"], **predicted}, *others, *front):
        _check_candidate(one, name)
    _check_values("parts", predicted["parts"], name)


def _check_candidate(one: Any, name: str) -> None:
    if not isinstance(one, Mapping):
        raise UsageError(f"report {name!r} is damaged: {one!r} is no strategy; {_WRITTEN}")
    _check_values("strategies", {field: one.get(field) for field in (*_COUNTS, *_NUMBERS)}, name)


def _check_values(what: str, values: Mapping[str, Any], name: str) -> None:
    for field, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"report {name!r} is damaged: {field}={value!r} among its {what} is no number; {_WRITTEN}")
