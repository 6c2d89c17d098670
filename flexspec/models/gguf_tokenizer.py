"""The tokenizer inside a GGUF file.

transformers converts it too, but takes GPT-2's way of splitting words for every byte-level tokenizer, and versions differ in which tokens
they call special. Where this file knows how the tokenizer splits, it builds it from the metadata itself.
"""

from pathlib import Path
from typing import Any

from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

# How text is split before merging, by the file's `tokenizer.ggml.pre`.
_SPLITS: dict[str, PreTokenizer] = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
}


def gguf_tokenizer(reader: GGUFReader, path: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the file at `path` with its chat template, or None if it has none."""
    if reader.get_field("tokenizer.ggml.tokens") is None:
        return None
    tokenizer: PreTrainedTokenizerBase
    if _field(reader, "tokenizer.ggml.model") == "gpt2" and _field(reader, "tokenizer.ggml.pre") in _SPLITS:
        fast: Any = PreTrainedTokenizerFast  # untyped
        tokenizer = fast(tokenizer_object=_byte_level_bpe(reader), clean_up_tokenization_spaces=False)
        tokenizer.chat_template = _field(reader, "tokenizer.chat_template")
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, trust_remote_code=False)
        tokenizer.clean_up_tokenization_spaces = False
    for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = _field(reader, f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(int(token_id)))
    return tokenizer


def _byte_level_bpe(reader: GGUFReader) -> Tokenizer:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges: list[str] = _field(reader, "tokenizer.ggml.merges")
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[_pair(merge) for merge in merges]))
    backend.pre_tokenizer = _SPLITS[_field(reader, "tokenizer.ggml.pre")]
    backend.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, types, strict=True))
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == TokenType.CONTROL])
    backend.add_tokens([AddedToken(token, normalized=False) for token, kind in kinds if kind == TokenType.USER_DEFINED])
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right


def _field(reader: GGUFReader, name: str) -> Any:
    field = reader.get_field(name)
    return None if field is None else field.contents()
