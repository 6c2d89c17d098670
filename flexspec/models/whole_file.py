"""Files that are there as a whole or not at all."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from flexspec.errors import UsageError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file beside `path`, in a folder that is made if need be, then put it there; what was there stays until then.

    Raises:
        UsageError: if it can't be written.
    """
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(path)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UsageError(f"{str(path)!r} can't be written ({error}): make room there, or give another folder") from None


def write_text_whole(path: Path, text: str) -> None:
    """As `write_whole`, of UTF-8 text."""
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))
