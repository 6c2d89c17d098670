"""Ctrl-C among ranks: a driver takes it between messages, never in the middle of one, and the other ranks leave it to their driver."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back until the end of what must not be torn."""
    came: list[Any] = []
    with _handled_by(came.append):
        yield
    if came:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Let Ctrl-C pass by: another rank says what becomes of it."""
    with _handled_by(lambda _: None):
        yield


@contextmanager
def _handled_by(note: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is ever interrupted
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: note(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
