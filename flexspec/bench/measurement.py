"""What every measured system offers, and what one run of it gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexspec.tree_shape import Tree


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """What all systems are asked for alike.

    Attributes:
        max_tokens: most new tokens of a prompt; an end-of-sequence token ends it earlier.
        temperature: 0 is greedy.
        top_p: 1 keeps all tokens.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One prompt completed by one system.

    Attributes:
        new_tokens: tokens generated, the end-of-sequence token included.
        decode_tokens: those of them that came after the pass that finished the prompt.
        steps: passes of the large model that gave tokens, that one included.
        prefill_s: seconds until the first tokens.
        decode_s: seconds from the first tokens to the last.
    """

    new_tokens: int
    decode_tokens: int
    steps: int
    prefill_s: float
    decode_s: float

    @property
    def tokens_per_s(self) -> float:
        """Decode tokens a second; 0 if the text ended with its first tokens."""
        return self.decode_tokens / self.decode_s if self.decode_tokens else 0.0


class System(Protocol):
    """Something that completes prompts.

    Attributes:
        name: as reports call it.
        drafters: what it drafts with, by name.
        tree: its token tree; none for plain decoding.
    """

    name: str
    drafters: tuple[str, ...]
    tree: Tree

    def run(self, prompt: Sequence[int], seed: int) -> Measurement:
        """Complete one prompt of token ids, alone; `seed` counts only above temperature 0."""
        ...
