"""Reading results that were saved earlier."""

import json
from pathlib import Path
from typing import Any

from flexspec.bench.result import BenchResult
from flexspec.bench.result_json import FORMAT, FORMAT_VERSION, results_from_json
from flexspec.errors import UsageError

_FIX = "give a file that `flexspec bench --save` wrote"


def load_results(path: Path, option: str) -> list[BenchResult]:
    """Read a file that `flexspec bench --save` wrote: one result a batch size.

    Args:
        path: of the file.
        option: that it was given with.

    Raises:
        UsageError: if it can't be read, is anything else, of another version, or damaged.
    """
    told = f"{option} {str(path)!r}"
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{told} can't be read ({error.strerror}): {_FIX}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{told} is not JSON ({error}): {_FIX}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UsageError(f"{told} is not a benchmark's result: {_FIX}")
    if content.get("version") != FORMAT_VERSION:
        raise UsageError(
            f"{told} is a result of version {content.get('version')!r}, and this flexspec reads version {FORMAT_VERSION}: measure anew"
        )
    try:
        return results_from_json(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{told} is a damaged benchmark's result ({type(error).__name__}: {error}): measure anew") from None
