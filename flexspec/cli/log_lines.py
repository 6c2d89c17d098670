"""Shows the log of the library on stderr."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def log_lines(every_s: float | None) -> Iterator[None]:
    """Within it, what the logger `flexspec` is told at level INFO goes to stderr; nothing changes if `every_s` is None."""
    if every_s is None:
        yield
        return
    logger = logging.getLogger("flexspec")
    level = logger.level
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
