"""Speculative text against plain text, token for token."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.checking.next_logits import next_logits
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.runtime.output import Output


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two texts part.

    Attributes:
        position: index of the token among the new ones, from 0.
        plain: plain decoding's token; None if its text ended there.
        speculative: speculation's token; None if its text ended there.
        gap: the plain model's logit of `plain` less that of `speculative`; None if a text ended.
    """

    position: int
    plain: int | None
    speculative: int | None
    gap: float | None

    def __str__(self) -> str:
        plain, speculative = ("the end" if token is None else str(token) for token in (self.plain, self.speculative))
        gap = "" if self.gap is None else f", whose logits are {self.gap:.3g} apart"
        return f"new token {self.position + 1} is {plain} plainly and {speculative} speculatively{gap}"


def first_difference(model: CompiledModel, plain: Output, speculative: Output) -> Difference | None:
    """Where the tokens of two outputs for one prompt first differ, or None if they are identical.

    Raises:
        GenerationFailed: if one of them could not go on.
    """
    for output in (plain, speculative):
        output.raise_for_error()
    ours, theirs = plain.token_ids, speculative.token_ids
    if ours == theirs:
        return None
    shorter = min(len(ours), len(theirs))
    position = next((place for place in range(shorter) if ours[place] != theirs[place]), shorter)
    a, b = _at(ours, position), _at(theirs, position)
    gap = None
    if a is not None and b is not None:
        logits = next_logits(model, [*plain.prompt_token_ids, *ours[:position]])
        gap = float(logits[a] - logits[b])
    return Difference(position=position, plain=a, speculative=b, gap=gap)


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None
