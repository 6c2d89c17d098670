"""Texts to tune on, kept in a folder, a file a round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from flexspec.errors import UsageError

Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text.

    Attributes:
        tokens: [n] token ids.
        is_answer: [n] whether the model wrote the token as (part of) an answer; the others were given to it.
    """

    tokens: Int64
    is_answer: Bool


class Corpus:
    """The texts made so far, in rounds; a round is there as a whole or not at all.

    Args:
        folder: holds `00000.safetensors` and so on; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._rounds = [_read(path) for path in sorted(folder.glob("*.safetensors"))]

    @property
    def num_rounds(self) -> int:
        """Rounds that are there; the next one has this number."""
        return len(self._rounds)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(int(text.is_answer.sum()) for text in self)

    def __iter__(self) -> Iterator[Text]:
        """All texts, in the order in which they were made."""
        return (text for texts in self._rounds for text in texts)

    def add_round(self, texts: Sequence[Text]) -> None:
        """Keep another round, on disk before this returns."""
        lengths = np.array([len(text.tokens) for text in texts], dtype=np.int32)
        tokens = np.concatenate([text.tokens for text in texts]) if texts else np.zeros(0, dtype=np.int64)
        small = np.uint16 if not len(tokens) or tokens.max() < 2**16 else np.int32
        answers = np.concatenate([text.is_answer for text in texts]) if texts else np.zeros(0, dtype=np.bool_)
        path = self._folder / f"{len(self._rounds):05}.safetensors"
        partial = path.with_suffix(".partial")
        save_file({"tokens": tokens.astype(small), "lengths": lengths, "is_answer": np.packbits(answers)}, partial)
        partial.replace(path)
        self._rounds.append(list(texts))


def _read(path: Path) -> list[Text]:
    try:
        stored = load_file(path)
        tokens, lengths = stored["tokens"].astype(np.int64), stored["lengths"].astype(np.int64)
        answers = np.unpackbits(stored["is_answer"], count=len(tokens)).astype(np.bool_)
    except (OSError, SafetensorError, KeyError) as error:
        raise UsageError(f"{str(path)!r} is not a round of a corpus ({error}): remove it, and it is made again") from None
    if lengths.sum() != len(tokens):
        raise UsageError(f"{str(path)!r} is not a round of a corpus: its lengths do not add up; remove it, and it is made again")
    ends = np.cumsum(lengths)
    return [
        Text(tokens=tokens[end - length : end], is_answer=answers[end - length : end]) for end, length in zip(ends, lengths, strict=True)
    ]
