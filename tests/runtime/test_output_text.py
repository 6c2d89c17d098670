import random

import pytest
from tokenizers import Tokenizer, decoders, models

from flexspec.runtime.output_text import OutputText
from toy_tokenizer import ToyTokenizer, letters


def feed_all(text, blocks):
    pieces, used = [], []
    for block in blocks:
        count, piece = text.feed(block)
        pieces.append(piece)
        used += block[:count]
        if text.stopped:
            break
    pieces.append(text.finish())
    assert text.text == "".join(pieces)
    return used, pieces


@pytest.mark.parametrize(
    "blocks", [[[0, 1, 2, 3, 4, 5]], [[0], [1], [2], [3], [4]], [[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 5]], [[0, 1, 2, 3], [4]]]
)
@pytest.mark.parametrize("live", [False, True])
def test_a_stop_string_over_two_tokens_ends_ids_and_text_at_the_same_token(blocks, live):  # case 9
    used, pieces = feed_all(OutputText(letters(6), ["cd"], live=live), blocks)
    assert used == [0, 1, 2, 3]
    assert "".join(pieces) == "ab"
    assert not any("c" in piece for piece in pieces)


def test_a_stop_string_inside_one_token():
    used, pieces = feed_all(OutputText(ToyTokenizer(["ab", "c. d", "e"]), ["."], live=True), [[0, 1, 2]])
    assert used == [0, 1] and "".join(pieces) == "abc"


def test_of_two_stop_strings_the_one_completed_by_the_earlier_token_counts_whatever_the_steps():
    for blocks in ([[0, 1, 2]], [[0], [1], [2]], [[0, 1], [2]]):
        used, pieces = feed_all(OutputText(letters(3), ["abc", "b"], live=True), blocks)
        assert used == [0, 1] and "".join(pieces) == "a"


def test_text_that_only_began_like_a_stop_string_comes_at_the_end():
    used, pieces = feed_all(OutputText(letters(6), ["cdx"], live=True), [[0, 1, 2], [3]])
    assert used == [0, 1, 2, 3] and pieces == ["ab", "", "cd"]


def test_without_stream_and_stop_strings_nothing_is_decoded_before_the_end():
    tokenizer = letters(6)
    text = OutputText(tokenizer, [], live=False)
    for token in range(6):
        assert text.feed([token]) == (1, "")
    assert tokenizer.num_calls == 0
    assert text.finish() == "abcdef" and tokenizer.num_calls == 1


def byte_fallback():
    """A decoder that renders a run of byte tokens anew with each one, as LLaMA 2's does."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abc"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


@pytest.mark.parametrize("stops", [[], ["a"], ["\ufffd"]])
@pytest.mark.parametrize("seed", range(10))
def test_text_does_not_depend_on_how_many_tokens_a_step_has(stops, seed):
    rng = random.Random(seed)
    ids = [rng.randrange(1, 260) for _ in range(40)]
    results = []
    for most in (1, 3, 9):
        blocks, end = [], 0
        while end < len(ids):
            start, end = end, min(end + rng.randint(1, most), len(ids))
            blocks.append(ids[start:end])
        used, pieces = feed_all(OutputText(byte_fallback(), stops, live=True), blocks)
        results.append((used, "".join(pieces)))
    assert results[0] == results[1] == results[2]
