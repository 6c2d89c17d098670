"""Whether what is about to be allocated fits into memory."""

import os
from collections.abc import Mapping
from pathlib import Path

from flexspec.errors import UsageError


def available_memory() -> int:
    """Bytes that can be allocated now, caches of the system counted as free."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def check_fits(needs: Mapping[str, int], available: int) -> None:
    """Refuse at start what would run out of memory later.

    Args:
        needs: bytes still to be allocated, by what they are for.
        available: bytes there are.

    Raises:
        UsageError: with all sizes, if they don't fit.
    """
    total = sum(needs.values())
    if total > available:
        parts = ", ".join(f"{name} {size / 1e9:.2f} GB" for name, size in needs.items() if size)
        raise UsageError(
            f"{total / 1e9:.2f} GB are needed ({parts}) and {available / 1e9:.2f} GB are available: "
            "give a smaller max_len or max_batch, or smaller or fewer ssms"
        )


def check_weights_fit(name: str, model: object, available: int) -> None:
    """Refuse to load a model whose weights, as they lie on disk, are larger than the memory there is.

    Args:
        name: what the model is, for the message.
        model: what the user gave; only folders and files are looked at.
        available: bytes there are.

    Raises:
        UsageError: with both sizes.
    """
    if not isinstance(model, str | os.PathLike) or not os.path.exists(path := Path(os.path.expanduser(model))):
        return
    files = [path] if path.is_file() else [file for pattern in ("*.safetensors", "*.bin") for file in path.glob(pattern)]
    check_fits({f"weights of {name} {os.fspath(model)}": sum(file.stat().st_size for file in files)}, available)
