"""Progress on terminals and elsewhere."""

from io import StringIO

import pytest
from rich.console import Console

from flexspec.tuning import progress
from flexspec.tuning.progress import bar


def shown(monkeypatch: pytest.MonkeyPatch, seconds: list[float], *, terminal: bool = False) -> str:
    times = iter([0.0, *seconds, *[seconds[-1]] * 9])
    monkeypatch.setattr(progress, "monotonic", lambda: next(times))
    file = StringIO()
    with bar(Console(file=file, force_terminal=terminal, width=60), "writing [x], tokens", 9) as made:
        for done in range(1, 4):
            made.at(done, total=4, detail="loss 2.5")
    return file.getvalue()


def test_elsewhere_there_is_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "writing [x], tokens loss 2.5: {}/4\n"
    assert shown(monkeypatch, [1.0, 2.0, 3.0]) == line.format(3)
    assert shown(monkeypatch, [61.0, 61.0, 62.0, 63.0]) == line.format(1) + line.format(3)


def test_nothing_done_is_no_line() -> None:
    file = StringIO()
    with pytest.raises(KeyboardInterrupt), bar(Console(file=file), "writing", 9):
        raise KeyboardInterrupt
    assert file.getvalue() == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, [1.0], terminal=True)
    assert "\x1b[" in text and "━" in text and "3/4" in text
