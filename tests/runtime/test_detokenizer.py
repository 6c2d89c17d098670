import random

import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from flexspec.runtime.detokenizer import REPLACEMENT, Detokenizer
from toy_tokenizer import ToyTokenizer

TEXT = "Grüße, 你好世界! 👩‍👩‍👧 hello hello 😀😃 日本語のテキスト, naïve café 🇩🇪 end. " * 3


def byte_level_bpe():
    tokenizer = HFTokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(["hello naive text end"], trainer)
    return tokenizer


def byte_fallback_bpe():
    """As LLaMA 2 decodes: pieces with ▁ for spaces, unknown characters as byte tokens, no space at the start."""
    pieces = ["<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)] + ["▁"] + list("abcdefghijklmnopqrstuvwxyz,.!你")
    tokenizer = HFTokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def stream(tokenizer, ids, rng):
    detokenizer = Detokenizer(tokenizer)
    parts, end = [], 0
    while end < len(ids):
        end = min(end + rng.randint(1, 6), len(ids))
        parts.append(detokenizer.read(ids[:end]))
    return parts, detokenizer.read(ids, final=True)


@pytest.mark.parametrize("make", [byte_level_bpe, byte_fallback_bpe])
@pytest.mark.parametrize("seed", range(10))
def test_joined_stream_is_the_full_decode_without_replacement_characters(make, seed):  # case 29
    tokenizer = make()
    ids = tokenizer.encode(TEXT).ids
    parts, rest = stream(tokenizer, ids, random.Random(seed))
    assert "".join(parts) + rest == tokenizer.decode(ids, skip_special_tokens=True)
    assert not any(REPLACEMENT in part for part in parts)


@pytest.mark.parametrize("seed", range(5))
def test_a_character_cut_off_at_the_end_is_flushed_as_the_tokenizer_shows_it(seed):
    tokenizer = byte_level_bpe()
    ids = tokenizer.encode("a😀").ids[:-1]
    parts, rest = stream(tokenizer, ids, random.Random(seed))
    assert "".join(parts) == "a" and rest == REPLACEMENT


def test_bytes_that_are_no_text_are_shown_once_it_is_certain():
    tokenizer = ToyTokenizer([b"\xff", b"\xe4", b"\xbd", b"\xa0", b"a"])
    rng = random.Random(0)
    for _ in range(30):
        ids = [rng.randrange(5) for _ in range(50)]
        parts, rest = stream(tokenizer, ids, rng)
        assert "".join(parts) + rest == tokenizer.decode(ids, skip_special_tokens=True)


def test_work_per_step_does_not_grow_with_the_text():
    class Recorder(ToyTokenizer):
        longest = 0

        def decode(self, token_ids, *, skip_special_tokens):
            self.longest = max(self.longest, len(token_ids))
            return super().decode(token_ids, skip_special_tokens=skip_special_tokens)

    tokenizer = Recorder(["a", "bc"])
    stream(tokenizer, [0, 1] * 500, random.Random(0))
    assert tokenizer.longest < 50
