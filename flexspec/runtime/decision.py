"""What a pass says about each of its requests, before anything is changed for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from flexspec.errors import UsageError
from flexspec.runtime.logprobs import TokenLogprobs, token_logprobs
from flexspec.runtime.request import Request
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.scheduler import PrefillChunk
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How a request goes on after a pass.

    Attributes:
        request: the request.
        tree: what was verified.
        verdict: the accepted path and the bonus token.
        token_ids: the accepted tokens and the bonus token.
        logprobs: an entry for each of them, if the request asks for that.
        verify_s: seconds that took.
    """

    request: Request
    tree: TokenTree
    verdict: Verdict
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None
    verify_s: float


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A request that can't go on.

    Attributes:
        request: the request.
        error: what is wrong with the model's logits, or with what the request asks to be done to them.
    """

    request: Request
    error: NonFiniteLogitsError | UsageError


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a whole pass says.

    Attributes:
        decisions: of the trees in order, then of the chunks that end their prompts or fail.
        prompt_logprobs: of each chunk, the entries of prompt tokens that its logits give; [] if none were asked for.
    """

    decisions: list[Decision | Failure]
    prompt_logprobs: list[list[TokenLogprobs]]


def decide(trees: Sequence[tuple[Request, TokenTree]], chunks: Sequence[PrefillChunk], logits: torch.Tensor) -> Outcome:
    """Verify all trees, choose the first token of each prompt that a chunk ends, and read the log probabilities asked for.

    What one request's logits do not allow ends that request alone.

    Args:
        trees: as `BatchBuilder.build` took them.
        chunks: likewise, their tokens not yet counted as computed.
        logits: [output rows, vocab] of that batch.
    """
    decisions: list[Decision | Failure] = []
    entries: list[list[TokenLogprobs]] = []
    end = 0
    for request, tree in trees:
        begin, end = end, end + len(tree.tokens)
        decisions.append(_decide(request, tree, logits[begin:end]))
    for chunk in chunks:
        begin, end = end, end + chunk.num_outputs
        decision: Decision | Failure | None = None
        try:
            entries.append(_prompt_logprobs(chunk, logits[begin:end]))
        except NonFiniteLogitsError as error:
            entries.append([])
            decision = Failure(request=chunk.request, error=error)
        if decision is None and chunk.is_last:
            # The first token is drawn like every other: from a tree of the last token of the prompt alone.
            decision = _decide(chunk.request, TokenTree.root(chunk.request.tokens[-1]), logits[end - 1 : end])
        if decision is not None:
            decisions.append(decision)
    assert end == len(logits), f"{len(logits)} rows of logits where {end} were asked for"
    return Outcome(decisions=decisions, prompt_logprobs=entries)


def _decide(request: Request, tree: TokenTree, logits: torch.Tensor) -> Decision | Failure:
    began = perf_counter()
    params = request.sampler.params
    try:
        verdict = request.verifier.verify(tree, logits.__getitem__, request.sampler, len(request.tokens))
        token_ids = [*(int(tree.tokens[node]) for node in verdict.path[1:]), verdict.bonus]
        entries = None
        if params.logprobs is not None:
            rows = _path_rows(logits, verdict.path)
            entries = token_logprobs(rows, token_ids, top=params.logprobs, vocab_limit=request.sampler.vocab_limit)
    except (NonFiniteLogitsError, UsageError) as error:
        return Failure(request=request, error=error)
    verify_s = perf_counter() - began
    return Decision(request=request, tree=tree, verdict=verdict, token_ids=token_ids, logprobs=entries, verify_s=verify_s)


def _path_rows(logits: torch.Tensor, path: Sequence[int]) -> list[torch.Tensor]:
    """For each token that a verdict emits, the logits it was chosen from: those at the node it follows."""
    return [logits[node] for node in path]


def _prompt_logprobs(chunk: PrefillChunk, logits: torch.Tensor) -> list[TokenLogprobs]:
    """Entries of the prompt tokens that follow those of the chunk, if they are asked for."""
    request = chunk.request
    top = request.sampler.params.prompt_logprobs
    if top is None:
        return []
    first = request.num_computed + 1
    followed = request.tokens[first : first + chunk.count]
    return token_logprobs(list(logits[: len(followed)]), followed, top=top, vocab_limit=request.sampler.vocab_limit)
