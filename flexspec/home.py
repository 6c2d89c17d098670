"""Where flexspec keeps what it fetched or built."""

import os
from pathlib import Path


def cache_home() -> Path:
    """The cache folder: the environment's `FLEXSPEC_HOME`, or `~/.cache/flexspec`; it need not exist yet."""
    chosen = os.environ.get("FLEXSPEC_HOME")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "flexspec"
