"""The corpus on disk: rounds come back as they were, are made again where they are missing, and damage is named."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flexspec.errors import UsageError
from flexspec.tuning.corpus import Corpus, Text
from tuning_cases import text


def equal(one: Text, other: Text) -> bool:
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.is_answer, other.is_answer)


def test_rounds_come_back(tmp_path: Path) -> None:
    texts = [text(9 + number, 3, seed=number) for number in range(5)]
    corpus = Corpus(tmp_path / "made")
    assert (corpus.num_rounds, corpus.num_answer_tokens, list(corpus)) == (0, 0, [])
    corpus.add_round(texts[:3])
    corpus.add_round(texts[3:])
    for again in (corpus, Corpus(tmp_path / "made")):
        assert (again.num_rounds, again.num_answer_tokens) == (2, 15)
        assert all(equal(one, other) for one, other in zip(again, texts, strict=True))
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["00000.safetensors", "00001.safetensors"]


def test_token_ids_are_small_on_disk(tmp_path: Path) -> None:
    large = Text(tokens=np.array([1, 70_000]), is_answer=np.array([False, True]))
    corpus = Corpus(tmp_path)
    corpus.add_round([text(9, 3)])
    corpus.add_round([large])
    stored = [load_file(tmp_path / f"0000{number}.safetensors") for number in range(2)]
    assert [round_["tokens"].dtype for round_ in stored] == [np.uint16, np.int32]
    assert equal(list(Corpus(tmp_path))[1], large)


def test_a_missing_round_is_made_again_and_no_other(tmp_path: Path) -> None:
    texts = [text(9, 3, seed=number) for number in range(3)]
    corpus = Corpus(tmp_path)
    for one in texts:
        corpus.add_round([one])
    (tmp_path / "00001.safetensors").unlink()
    corpus = Corpus(tmp_path)
    assert (corpus.num_rounds, corpus.num_answer_tokens) == (1, 3), "what follows it does not count yet"
    corpus.add_round([texts[1]])
    assert corpus.num_rounds == 3
    assert all(equal(one, other) for one, other in zip(Corpus(tmp_path), texts, strict=True))


@pytest.mark.parametrize("damage", ["cut", "no safetensors", "lengths", "answers", "kind", "negative", "fields"])
def test_damaged_rounds(tmp_path: Path, damage: str) -> None:
    Corpus(tmp_path).add_round([text(90, 3)])
    path = tmp_path / "00000.safetensors"
    stored = load_file(path)
    match damage:
        case "cut":
            path.write_bytes(path.read_bytes()[:-5])
        case "no safetensors":
            path.write_bytes(b"something else")
        case "lengths":
            save_file(stored | {"lengths": stored["lengths"] - 1}, path)
        case "answers":
            save_file(stored | {"is_answer": stored["is_answer"][:-1]}, path)
        case "kind":
            save_file(stored | {"is_answer": stored["is_answer"].astype(np.float32)}, path)
        case "negative":
            save_file(stored | {"tokens": stored["tokens"].astype(np.int32) - 300}, path)
        case "fields":
            save_file({"tokens": stored["tokens"]}, path)
    with pytest.raises(UsageError, match=r"00000\.safetensors' is not a round of a corpus.*: .*remove it, and it is made again"):
        Corpus(tmp_path)


def test_a_foreign_file(tmp_path: Path) -> None:
    save_file({"weight": np.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=r"model\.safetensors' is not a round of a corpus, which has a number as its name: remove it"):
        Corpus(tmp_path)


def test_a_round_that_can_t_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(tmp_path)
    corpus.add_round([text(9, 3)])

    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flexspec.tuning.corpus.save_file", full)
    with pytest.raises(UsageError, match=r"00001\.safetensors' can't be written \(.*No space left on device\): make room there"):
        corpus.add_round([text(9, 3)])
    assert corpus.num_rounds == 1 and [path.name for path in tmp_path.iterdir()] == ["00000.safetensors"]
