"""What the engine hands to its callers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flexspec.errors import UsageError
from flexspec.runtime.logprobs import TokenLogprobs
from flexspec.runtime.stats import RequestStats
from flexspec.runtime.token_tree import TokenTree

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, kw_only=True)
class Output:
    """A request that ended.

    Attributes:
        prompt_token_ids: what it was asked.
        token_ids: what was generated, with the token that ended it or completed a stop string.
        text: their text without special tokens, ending before the first stop string; '' without a tokenizer.
        finish_reason: `stop`: end of sequence, a stop token or a stop string; `length`: `max_tokens` or the capacity; `abort`: interrupted;
            `error`: it could not go on, and what was produced before is here. Other requests are not disturbed by that.
        stats: counts and times.
        completion: which of the prompt's `SamplingParams.n` completions this is, from 0.
        error: what went wrong if that is why it ended, for example that the model's logits were NaN; else None.
        logprobs: an entry for each of `token_ids`; None unless `SamplingParams.logprobs` asked for them.
        prompt_logprobs: None for the first token of the prompt, which follows nothing, then an entry for each of the others,
            as far as they were computed if it ended before; None unless `SamplingParams.prompt_logprobs` asked for them.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: FinishReason
    stats: RequestStats
    completion: int = 0
    error: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    def raise_for_error(self) -> None:
        """Do nothing, unless the request could not go on.

        Raises:
            GenerationFailed: then, with what went wrong.
        """
        if self.error is not None:
            raise GenerationFailed(self.error)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """What one step added to a request.

    Attributes:
        request_id: the request.
        token_ids: its new tokens, the bonus token last if it was kept.
        num_accepted: how many of them, from the first on, were drafted and accepted.
        text: new text that is final; '' for a request that does not stream.
        output: the whole request if it ended with this step.
        logprobs: an entry for each of `token_ids`; None unless asked for.
    """

    request_id: int
    token_ids: list[int]
    num_accepted: int
    text: str
    output: Output | None
    logprobs: list[TokenLogprobs] | None = None


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


class GenerationFailed(RuntimeError):
    """A request that could not go on, for example because the model's logits were NaN."""


class RequestMistake(UsageError):
    """A request could not go on until the user mends its processor, grammar or parameters.

    Attributes:
        outputs: of all requests of the call, in the order of the prompts; those that were still running end with `abort`.
    """

    def __init__(self, mistake: UsageError, outputs: list[Output]) -> None:
        super().__init__(str(mistake))
        self.outputs = outputs

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is sent to other ranks."""
        return RequestMistake, (UsageError(str(self)), self.outputs)


class GenerationInterrupted(KeyboardInterrupt):
    """Ctrl-C during `generate`; `outputs` holds, in the order of the prompts, what was produced until then."""

    def __init__(self, outputs: list[Output]) -> None:
        super().__init__("generation was interrupted")
        self.outputs = outputs

    def __reduce__(self) -> tuple[Any, ...]:
        """How it is sent to other ranks."""
        return GenerationInterrupted, (self.outputs,)
