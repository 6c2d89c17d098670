"""Texts to tune on, kept in a folder, a file a round."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from flexspec.errors import UsageError
from flexspec.models.whole_file import write_whole

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

    If a round is missing, those after it count again once it is made.

    Args:
        folder: holds `00000.safetensors` and so on; made if need be.

    Raises:
        UsageError: if a file in it is damaged, or no round of a corpus.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._rounds = {_number(path): _read(path) for path in sorted(folder.glob("*.safetensors"))}

    @property
    def num_rounds(self) -> int:
        """Rounds that are there without a gap; the next one has this number."""
        return next(number for number in itertools.count() if number not in self._rounds)

    @property
    def num_answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(int(text.is_answer.sum()) for text in self)

    def __iter__(self) -> Iterator[Text]:
        """All texts, in the order in which they were made."""
        return (text for number in range(self.num_rounds) for text in self._rounds[number])

    def add_round(self, texts: Sequence[Text]) -> None:
        """Keep another round, on disk before this returns."""
        lengths = np.array([len(text.tokens) for text in texts], dtype=np.int32)
        tokens = np.concatenate([text.tokens for text in texts]) if texts else np.zeros(0, dtype=np.int64)
        small = np.uint16 if not len(tokens) or tokens.max() < 2**16 else np.int32
        answers = np.concatenate([text.is_answer for text in texts]) if texts else np.zeros(0, dtype=np.bool_)
        number = self.num_rounds
        path = self._folder / f"{number:05}.safetensors"
        stored = {"tokens": tokens.astype(small), "lengths": lengths, "is_answer": np.packbits(answers)}
        write_whole(path, lambda partial: save_file(stored, partial))
        self._rounds[number] = list(texts)


def _number(path: Path) -> int:
    if not path.stem.isdecimal():
        raise UsageError(f"{str(path)!r} is not a round of a corpus, which has a number as its name: remove it, or give another folder")
    return int(path.stem)


def _read(path: Path) -> list[Text]:
    try:
        stored = load_file(path)
        tokens, lengths = stored["tokens"].astype(np.int64), stored["lengths"].astype(np.int64)
        answers = np.unpackbits(stored["is_answer"], count=len(tokens)).astype(np.bool_)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{str(path)!r} is not a round of a corpus ({error}): remove it, and it is made again") from None
    fits = tokens.ndim == lengths.ndim == 1 and lengths.sum() == len(tokens) and stored["is_answer"].size == -(-len(tokens) // 8)
    if not fits or (lengths < 1).any() or (tokens < 0).any():
        raise UsageError(f"{str(path)!r} is not a round of a corpus: its lengths do not add up; remove it, and it is made again")
    ends = np.cumsum(lengths)
    return [
        Text(tokens=tokens[end - length : end], is_answer=answers[end - length : end]) for end, length in zip(ends, lengths, strict=True)
    ]
