"""A tokenizer whose tokens are bytes or strings, for tests of text."""


class ToyTokenizer:
    """Token i stands for `pieces[i]`, text or raw bytes; ids in `special` are left out of the text."""

    def __init__(self, pieces: list[str | bytes], special: tuple[int, ...] = ()) -> None:
        self._pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._special = set(special)
        self.num_calls = 0

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        self.num_calls += 1
        kept = [token for token in token_ids if not (skip_special_tokens and token in self._special)]
        return b"".join(self._pieces[token] for token in kept).decode(errors="replace")


def letters(count: int, special: tuple[int, ...] = ()) -> ToyTokenizer:
    """Token i is the i-th letter from "a" on."""
    return ToyTokenizer([chr(ord("a") + token) for token in range(count)], special)
