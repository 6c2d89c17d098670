"""How many texts are made."""

from pathlib import Path

import pytest

from flexspec.tuning.answers import Draft
from flexspec.tuning.corpus import Corpus
from flexspec.tuning.make_corpus import ROUND_SIZE, make_corpus


class Counted:
    """Writes texts with one answer token; `last` rounds, then none."""

    def __init__(self, last: int = 1000) -> None:
        self.rounds: list[tuple[int, int]] = []
        self._last = last

    def write_round(self, number: int, size: int) -> list[Draft]:
        self.rounds.append((number, size))
        return [Draft(tokens=[3, number]).answered([place % 200]) for place in range(size)] if number < self._last else []


def made(folder: Path, source: Counted, **limits: int | None) -> tuple[Corpus, list[int]]:
    corpus, seen = Corpus(folder), []
    make_corpus(source, corpus, **({"num_tokens": 10**9} | limits), progress=seen.append)  # type: ignore[arg-type]
    return corpus, seen


def test_tokens_end_it(tmp_path: Path) -> None:
    corpus, seen = made(tmp_path, Counted(), num_tokens=ROUND_SIZE + 1)
    assert corpus.num_answer_tokens == 2 * ROUND_SIZE and seen == [0, ROUND_SIZE, 2 * ROUND_SIZE]


@pytest.mark.parametrize(("count", "sizes"), [(5, [5]), (ROUND_SIZE, [ROUND_SIZE]), (ROUND_SIZE + 4, [ROUND_SIZE, 4])])
def test_prompts_end_it(tmp_path: Path, count: int, sizes: list[int]) -> None:
    source = Counted()
    corpus, _ = made(tmp_path, source, num_prompts=count)
    assert [size for _, size in source.rounds] == sizes and len(list(corpus)) == count


def test_the_source_ends_it(tmp_path: Path) -> None:
    corpus, _ = made(tmp_path, Counted(last=2))
    assert corpus.num_rounds == 2


@pytest.mark.parametrize("gone", [None, 0, 1])
def test_what_is_there_is_not_written_again(tmp_path: Path, gone: int | None) -> None:
    limits = {"num_tokens": 3 * ROUND_SIZE}
    made(tmp_path, Counted(last=2))
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    if gone is not None:
        del kept[tmp_path / f"0000{gone}.safetensors"]
        (tmp_path / f"0000{gone}.safetensors").unlink()
    source = Counted()
    corpus, _ = made(tmp_path, source, **limits)
    assert [number for number, _ in source.rounds] == ([2] if gone is None else [gone, 2])
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    unbroken, _ = made(tmp_path / "unbroken", Counted(), **limits)
    assert [text.tokens.tolist() for text in corpus] == [text.tokens.tolist() for text in unbroken]
