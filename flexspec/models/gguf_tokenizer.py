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

from flexspec.errors import UsageError

_AGAIN = "it is damaged; fetch it again"
# How text is split before merging, by the file's `tokenizer.ggml.pre`.
_SPLITS: dict[str, PreTokenizer] = {
    "gpt-2": ByteLevel(add_prefix_space=False),
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
}


def gguf_tokenizer(reader: GGUFReader, path: Path) -> PreTrainedTokenizerBase | None:
    """The tokenizer of the file at `path` with its chat template, or None if it has none.

    Raises:
        UsageError: if its tokens, or what there is for each of them, do not belong together.
    """
    if reader.get_field("tokenizer.ggml.tokens") is None:
        return None
    _check_lists(reader, path)
    tokenizer: PreTrainedTokenizerBase
    if _field(reader, "tokenizer.ggml.model") == "gpt2" and _field(reader, "tokenizer.ggml.pre") in _SPLITS:
        fast: Any = PreTrainedTokenizerFast  # untyped
        tokenizer = fast(tokenizer_object=_byte_level_bpe(reader), clean_up_tokenization_spaces=False)
        tokenizer.chat_template = _field(reader, "tokenizer.chat_template")
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, trust_remote_code=False)
        tokenizer.clean_up_tokenization_spaces = False
    tokens = _field(reader, "tokenizer.ggml.tokens")
    for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token_id = _field(reader, f"tokenizer.ggml.{name}_token_id")
        if token_id is not None:
            if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
                raise UsageError(f"{path} says that its {name} token is {token_id!r}, but has {len(tokens)} tokens: {_AGAIN}")
            setattr(tokenizer, f"{role}_token", tokenizer.convert_ids_to_tokens(int(token_id)))
    return tokenizer


def _check_lists(reader: GGUFReader, path: Path) -> None:
    """Tokens, and what there is for each of them, are lists that belong together."""
    tokens, types = _field(reader, "tokenizer.ggml.tokens"), _field(reader, "tokenizer.ggml.token_type")
    if not _is_list(tokens, str):
        raise UsageError(f"{path} has a tokenizer whose tokens are no list of texts: {_AGAIN}")
    if types is not None and (not _is_list(types, int) or len(types) != len(tokens)):
        raise UsageError(f"{path} has a tokenizer of {len(tokens)} tokens whose types are no list of as many numbers: {_AGAIN}")
    merges = _field(reader, "tokenizer.ggml.merges") if _field(reader, "tokenizer.ggml.model") == "gpt2" else None
    if merges is not None and (not _is_list(merges, str) or any(merge.count(" ") != 1 for merge in merges)):
        raise UsageError(f"{path} has a tokenizer whose merges are no list of pairs of texts: {_AGAIN}")
    known = set(tokens)
    for merge in merges or ():
        if not known.issuperset((*_pair(merge), merge.replace(" ", ""))):
            raise UsageError(f"{path} has a tokenizer that merges {merge!r}, which are not among its tokens: {_AGAIN}")
    for name in ("model", "pre", "chat_template"):
        value = _field(reader, f"tokenizer.{'' if name == 'chat_template' else 'ggml.'}{name}")
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{path} has a tokenizer whose {name} is {value!r}, no text: {_AGAIN}")


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and all(isinstance(one, kind) for one in value)


def _byte_level_bpe(reader: GGUFReader) -> Tokenizer:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type") or [TokenType.NORMAL] * len(tokens)
    merges: list[str] = _field(reader, "tokenizer.ggml.merges") or []
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
