"""A model ready for capture, with what a runtime must know about it."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedTokenizerBase

from flexspec.ir.rope_length import rope_length


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A causal language model in eval mode on the CPU.

    Attributes:
        name: what the user wrote, for messages; a module's class name if a module was given.
        module: its weights; when the user gave a module, a copy of its structure that shares parameters where dtype and device allow.
        tokenizer: None if there is none: prompts are token ids then.
        eos_token_ids: tokens that end a text; empty if there are none.
        bos_token_id: what an empty prompt starts with; None if there is none.
        max_positions: the most tokens that a sequence may have; None if no limit is known.
        vocab_size: entries of one row of logits, padding included.
        limited_by: the kind of rotary embedding that changes beyond `max_positions`, if that is the reason for them.
    """

    name: str
    module: nn.Module
    tokenizer: PreTrainedTokenizerBase | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    max_positions: int | None
    vocab_size: int
    limited_by: str | None = None

    @property
    def token_id_limit(self) -> int:
        """Ids from here up to `vocab_size` are padding that no text contains: they must never be emitted."""
        if self.tokenizer is None:
            return self.vocab_size
        return min(self.vocab_size, max(self.tokenizer.get_vocab().values()) + 1)


def describe(name: str, module: nn.Module, tokenizer: PreTrainedTokenizerBase | None, vocab_size: int) -> LoadedModel:
    """`module` with its special tokens and limits, looked up where Hugging Face's `generate` does: generation config, config, tokenizer."""
    config = getattr(module, "config", None)
    positions, rotary = _max_positions(config), rope_length(config)
    limited_by = getattr(config, "limited_by", None)
    if rotary is not None and (positions is None or rotary[0] <= positions):
        positions, limited_by = rotary
    places = (getattr(module, "generation_config", None), config, tokenizer)
    return LoadedModel(
        name=name,
        module=module,
        tokenizer=tokenizer,
        eos_token_ids=_first_ids(places, "eos_token_id"),
        bos_token_id=next(iter(_first_ids(places, "bos_token_id")), None),
        max_positions=positions,
        vocab_size=vocab_size,
        limited_by=limited_by,
    )


def _first_ids(places: Iterable[object], attribute: str) -> tuple[int, ...]:
    for place in places:
        value = getattr(place, attribute, None)
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list | tuple) and value:
            return tuple(int(token) for token in value)
    return ()


def _max_positions(config: object) -> int | None:
    for attribute in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = getattr(config, attribute, None)
        if isinstance(value, int) and value > 0:
            return value
    return None
