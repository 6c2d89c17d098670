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
    """

    request: Request
    tree: TokenTree
    verdict: Verdict
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A request that can't go on.

    Attributes:
        request: the request.
        error: what is wrong with the model's logits, or with what the request asks to be done to them.
    """

    request: Request
    error: NonFiniteLogitsError | UsageError


def decide(trees: Sequence[tuple[Request, TokenTree]], chunks: Sequence[PrefillChunk], logits: torch.Tensor) -> list[Decision | Failure]:
    """Verify all trees, choose the first token of each prompt that a chunk ends, and read the log probabilities asked for.

    What one request's logits do not allow ends that request alone.

    Args:
        trees: as `BatchBuilder.build` took them.
        chunks: likewise, their tokens not yet counted as computed.
        logits: [output rows, vocab] of that batch.

    Returns:
        Those of the trees in order, then those of the chunks that end their prompts or fail.
    """
    decisions: list[Decision | Failure] = []
    end = 0
    for request, tree in trees:
        begin, end = end, end + len(tree.tokens)
        decisions.append(_decide(request, tree, logits[begin:end]))
    for chunk in chunks:
        begin, end = end, end + chunk.num_outputs
        decision = _decide_chunk(chunk, logits[begin:end])
        if decision is not None:
            decisions.append(decision)
    assert end == len(logits), f"{len(logits)} rows of logits where {end} were asked for"
    return decisions


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
    request.stats.verify_s += perf_counter() - began
    return Decision(request=request, tree=tree, verdict=verdict, token_ids=token_ids, logprobs=entries)


def _path_rows(logits: torch.Tensor, path: Sequence[int]) -> list[torch.Tensor]:
    """For each token that a verdict emits, the logits it was chosen from: those at the node it follows."""
    return [logits[node] for node in path]


def _decide_chunk(chunk: PrefillChunk, logits: torch.Tensor) -> Decision | Failure | None:
    request = chunk.request
    params = request.sampler.params
    if request.prompt_logprobs is not None and params.prompt_logprobs is not None:
        first = request.num_computed + 1
        followed = request.tokens[first : first + chunk.count]
        try:
            request.prompt_logprobs += token_logprobs(
                list(logits[: len(followed)]), followed, top=params.prompt_logprobs, vocab_limit=request.sampler.vocab_limit
            )
        except NonFiniteLogitsError as error:
            return Failure(request=request, error=error)
    # The first token is drawn like every other: from a tree of the last token of the prompt alone.
    return _decide(request, TokenTree.root(request.tokens[-1]), logits[-1:]) if chunk.is_last else None
