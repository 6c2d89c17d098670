"""Text of a growing list of token ids, a few tokens at a time."""

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_WINDOW = 32
_SHORT_WINDOWS = (8, 9, 10, 11)


class Tokenizer(Protocol):
    """The part of a tokenizer that the runtime needs; one list of ids gives one string, as in transformers."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str | list[str]: ...


class Detokenizer:
    """Turns token ids into text that never changes once it was returned.

    A character may span tokens: while the text ends in replacement characters they are held back. Only a window of the
    last tokens is decoded; a tokenizer that treats the first token of a text in its own way treats every window alike,
    so the difference between two decodings of one window is the text of the tokens between them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window = 0  # where the decoded window begins
        self._read = 0  # tokens whose text was returned, or is held back
        self._shown = 0  # characters of the window's text that were returned

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> str:
        """The text that `token_ids`, all tokens so far, add to what was returned before.

        Args:
            token_ids: the list of the call before, with tokens appended.
            final: no more tokens follow; return what is held back as it is.
        """
        text = self._decode(token_ids, self._window)
        settled = len(text) if final else len(text.rstrip(REPLACEMENT))
        new = text[self._shown : settled]
        # A tokenizer may render a run of bytes with replacement characters until the run is complete.
        self._shown = max(self._shown, settled)
        self._read = len(token_ids)
        if settled == len(text) and self._read - self._window > _MAX_WINDOW:
            self._shorten_window(token_ids, text)
        return new

    def _shorten_window(self, token_ids: Sequence[int], text: str) -> None:
        # A window must not begin inside a character: its text would not be the end of the longer window's.
        for length in _SHORT_WINDOWS:
            window = self._read - length
            end = self._decode(token_ids, window)
            if end and text.endswith(end):
                self._window = window
                self._shown = len(end)
                return

    def _decode(self, token_ids: Sequence[int], start: int) -> str:
        text = self._tokenizer.decode(list(token_ids[start:]), skip_special_tokens=True)
        assert isinstance(text, str), f"decode gave {type(text).__name__}"
        return text
