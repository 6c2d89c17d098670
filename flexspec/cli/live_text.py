"""Text on the terminal as it is generated, with what was drafted and accepted in colour."""

from rich.console import Console
from rich.text import Text

from flexspec.cli.tree_view import ACCEPTED
from flexspec.runtime.detokenizer import Tokenizer
from flexspec.runtime.output import Chunk, FinishReason


class LiveText:
    """Writes the chunks of one request.

    Args:
        console: where to.
        tokenizer: tells which part of a chunk's text its accepted tokens made.

    Attributes:
        finish_reason: why the text ended; None before that.
    """

    def __init__(self, console: Console, tokenizer: Tokenizer) -> None:
        self.finish_reason: FinishReason | None = None
        self._console = console
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._written = 0  # characters

    def write(self, chunk: Chunk) -> None:
        """Write a chunk's text at once."""
        if chunk.output is not None:
            self.finish_reason = chunk.output.finish_reason
        drafted = self._token_ids + chunk.token_ids[: chunk.num_accepted]
        self._token_ids += chunk.token_ids
        split = 0
        if chunk.num_accepted:
            split = max(len(str(self._tokenizer.decode(drafted, skip_special_tokens=True))) - self._written, 0)
        self._written += len(chunk.text)
        text = Text.assemble((chunk.text[:split], ACCEPTED), chunk.text[split:])
        self._console.print(text, end="", soft_wrap=True)
