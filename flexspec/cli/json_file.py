"""Writing results to files, as JSON or as text."""

import json
import os
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError


def check_writable(path: Path | None, option: str = "--json") -> None:
    """Refuse a file that could not be written later, before any work is done for it; None is fine.

    Args:
        path: of the file.
        option: that it was given with.

    Raises:
        UsageError: if its folder does not exist, or it or its folder may not be written.
    """
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"{option} {str(path)!r} can't be written: there is no folder {str(folder)!r}; make it, or give another file")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"{option} {str(path)!r} can't be written: give a file that may be written")


def write_json(path: Path | None, content: Any, option: str = "--json") -> None:
    """Write `content` to `path`; do nothing if that is None.

    Args:
        path: of the file.
        content: what JSON can hold.
        option: that the file was given with.

    Raises:
        UsageError: if the file can't be written.
    """
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n", option)


def write_text(path: Path | None, text: str, option: str) -> None:
    """Write `text` to `path`; do nothing if that is None.

    Args:
        path: of the file.
        text: all of it.
        option: that the file was given with.

    Raises:
        UsageError: if the file can't be written.
    """
    if path is None:
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option} {str(path)!r} can't be written ({error.strerror}): give another file") from None
