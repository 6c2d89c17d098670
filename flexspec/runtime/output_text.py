"""The text of one request: detokenised, cut at its stop strings."""

from collections.abc import Sequence

from flexspec.runtime.detokenizer import Detokenizer, Tokenizer
from flexspec.runtime.stop import StopMatcher


class OutputText:
    """Grows with a request's new tokens.

    Args:
        tokenizer: what decodes.
        stop_strings: end the text before the first of them.
        min_tokens: stop strings that are completed before this many tokens do not count.
        live: whether text is wanted with every step; stop strings want it as well. Otherwise it is decoded once, at the end.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str], *, min_tokens: int = 0, live: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._matcher = StopMatcher(stop_strings)
        self._min_tokens = min_tokens
        self._live = live or bool(stop_strings)
        self._token_ids: list[int] = []
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What is final so far."""
        return "".join(self._pieces)

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._matcher.stopped

    def feed(self, token_ids: list[int]) -> tuple[int, str]:
        """Append the tokens of a step.

        Returns:
            How many of them belong to the text: all, or those up to the one that completed a stop string; and the new final text.
        """
        if not self._live:
            self._token_ids += token_ids
            return len(token_ids), ""
        # Token by token, as plain decoding feeds them: tokenizers that fall back to bytes, or clean up spaces, change text that
        # was decoded before, so what a step reads at once would depend on how many of its drafts were accepted.
        shown: list[str] = []
        for token in token_ids:
            self._token_ids.append(token)
            shown.append(self._show(self._detokenizer.read(self._token_ids)))
            if self._matcher.stopped:
                break
        return len(shown), "".join(shown)

    def finish(self) -> str:
        """The text held back until now; no more tokens follow."""
        if self._matcher.stopped:
            return ""
        rest = self._show(self._detokenizer.read(self._token_ids, final=True))
        return rest if self._matcher.stopped else rest + self._append(self._matcher.flush())

    def _show(self, piece: str) -> str:
        return self._append(self._matcher.push(piece, may_stop=len(self._token_ids) >= self._min_tokens))

    def _append(self, text: str) -> str:
        self._pieces.append(text)
        return text
