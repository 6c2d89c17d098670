"""What the engine hands to its callers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from flexspec.runtime.stats import RequestStats
from flexspec.runtime.token_tree import TokenTree

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """A request that ended.

    Attributes:
        prompt_token_ids: what it was asked.
        token_ids: what was generated, with the end-of-sequence token or the token that completed a stop string.
        text: their text without special tokens, ending before the first stop string; '' without a tokenizer.
        finish_reason: `stop`: end of sequence or a stop string; `length`: `max_tokens` or the capacity; `abort`: interrupted.
        stats: counts and times.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stats: RequestStats


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one step added to a request.

    Attributes:
        request_id: the request.
        token_ids: its new tokens, the bonus token last if it was kept.
        num_accepted: how many of them, from the first on, were drafted and accepted.
        text: new text that is final; '' for a request that does not stream.
        output: the whole request if it ended with this step.
    """

    request_id: int
    token_ids: list[int]
    num_accepted: int
    text: str
    output: Output | None


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One request's part of a step, for observers.

    Attributes:
        request_id: the request.
        tree: what was verified.
        path: nodes of `tree` that were accepted, from the root (node 0) down.
        token_ids: the tokens emitted.
    """

    request_id: int
    tree: TokenTree
    path: Sequence[int]
    token_ids: list[int]


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C during `generate`; `outputs` holds, in the order of the prompts, what was produced until then."""

    def __init__(self, outputs: list[Output]) -> None:
        super().__init__("generation was interrupted")
        self.outputs = outputs
