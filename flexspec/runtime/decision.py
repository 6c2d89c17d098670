"""What a pass says about each of its requests, before anything is changed for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import torch

from flexspec.codegen.tree_walk import TreeWalker
from flexspec.errors import UsageError
from flexspec.runtime.device_trials import TrialPlans, can_try
from flexspec.runtime.device_walk import can_walk, walked_trees, walked_verdict
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
        wait_s: seconds that a device took to decide, its pass included; 0 without one.
    """

    decisions: list[Decision | Failure]
    prompt_logprobs: list[list[TokenLogprobs]]
    wait_s: float = 0.0


def decide(
    trees: Sequence[tuple[Request, TokenTree]], chunks: Sequence[PrefillChunk], logits: torch.Tensor, walker: TreeWalker | None = None
) -> Outcome:
    """Verify all trees, choose the first token of each prompt that a chunk ends, and read the log probabilities asked for.

    What one request's logits do not allow ends that request alone.

    Args:
        trees: as `BatchBuilder.build` took them.
        chunks: likewise, their tokens not yet counted as computed.
        logits: [output rows, vocab] of that batch.
        walker: decides on the logits' device for the requests that allow it; logits travel to the host only for the others.
    """
    questions: list[_Question] = []
    chunk_rows: list[range] = []
    end = 0
    for request, tree in trees:
        begin, end = end, end + len(tree.tokens)
        questions.append(_Question(request, tree, range(begin, end)))
    for chunk in chunks:
        begin, end = end, end + chunk.num_outputs
        chunk_rows.append(range(begin, end))
        if chunk.is_last:
            # The first token is drawn like every other: from a tree of the last token of the prompt alone.
            questions.append(_Question(chunk.request, TokenTree.root(chunk.request.tokens[-1]), range(end - 1, end)))
    assert end == len(logits), f"{len(logits)} rows of logits where {end} were asked for"
    verdicts: dict[int, Verdict | Failure] = {}
    wait_s = 0.0
    if walker is not None:
        began = perf_counter()
        verdicts = _decide_there(questions, logits, walker)
        wait_s = perf_counter() - began
    if len(verdicts) < len(questions) or any(chunk.request.prompt_logprobs is not None for chunk in chunks):
        logits = logits.cpu()
    failed: dict[int, Failure] = {}
    entries: list[list[TokenLogprobs]] = []
    for chunk, rows in zip(chunks, chunk_rows, strict=True):
        try:
            entries.append(_prompt_logprobs(chunk, logits[rows.start : rows.stop]))
        except NonFiniteLogitsError as error:
            entries.append([])
            failed[chunk.request.request_id] = Failure(request=chunk.request, error=error)
    decisions: list[Decision | Failure] = []
    for place, question in enumerate(questions):
        failure = failed.pop(question.request.request_id, None)
        decisions.append(failure or _decide(question, logits, verdicts.get(place)))
    return Outcome(decisions=[*decisions, *failed.values()], prompt_logprobs=entries, wait_s=wait_s)


class _Question(NamedTuple):
    """A tree to be decided about, and where its nodes' logits are."""

    request: Request
    tree: TokenTree
    rows: range


def _decide_there(questions: Sequence[_Question], logits: torch.Tensor, walker: TreeWalker) -> dict[int, Verdict | Failure]:
    """The verdicts of those questions, by their place, that the device can answer; everything is launched before the first wait."""
    walked = [place for place, question in enumerate(questions) if can_walk(question.request)]
    tried = [place for place, question in enumerate(questions) if can_try(question.request)]
    walks = trials = None
    if walked:
        walks = walker.launch(_rows_of(questions, walked, logits), walked_trees([questions[place][:2] for place in walked]))
    if tried:
        plans = TrialPlans([questions[place][:2] for place in tried])
        trials = walker.trials.launch(_rows_of(questions, tried, logits), plans.tried)
    found: dict[int, Verdict | None] = {}
    if walks is not None:
        read = walker.read(walks.cpu().numpy())
        found |= {place: walked_verdict(read, row) for row, place in enumerate(walked)}
    if trials is not None:
        results = walker.trials.read(trials.cpu().numpy())
        found |= {place: plans.verdict(row, results) for row, place in enumerate(tried)}
    error = NonFiniteLogitsError("the largest of the logits at a node is not finite")
    return {place: verdict or Failure(request=questions[place].request, error=error) for place, verdict in found.items()}


def _rows_of(questions: Sequence[_Question], places: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """The logits of some questions, one after the other."""
    rows = [row for place in places for row in questions[place].rows]
    if len(rows) == len(logits):
        return logits
    return logits.index_select(0, torch.tensor(rows).to(logits.device, non_blocking=True))


def _decide(question: _Question, logits: torch.Tensor, known: Verdict | Failure | None) -> Decision | Failure:
    if isinstance(known, Failure):
        return known
    began = perf_counter()
    request, tree, _ = question
    rows = logits[question.rows.start : question.rows.stop]
    params = request.sampler.params
    try:
        verdict = known or request.verifier.verify(tree, rows.__getitem__, request.sampler, len(request.tokens))
        token_ids = [*(int(tree.tokens[node]) for node in verdict.path[1:]), verdict.bonus]
        entries = None
        if params.logprobs is not None:
            path_rows = _path_rows(rows, verdict.path)
            entries = token_logprobs(path_rows, token_ids, top=params.logprobs, vocab_limit=request.sampler.vocab_limit)
    except (NonFiniteLogitsError, UsageError) as error:
        return Failure(request=request, error=error)
    verify_s = perf_counter() - began
    return Decision(request=request, tree=tree, verdict=verdict, token_ids=token_ids, logprobs=entries, verify_s=verify_s)


def _path_rows(logits: torch.Tensor, path: Sequence[int]) -> list[torch.Tensor]:
    """For each token that a verdict emits, the logits it was chosen from: those at the node it follows."""
    return [logits[node] for node in path]


def _prompt_logprobs(chunk: PrefillChunk, logits: torch.Tensor) -> list[TokenLogprobs]:
    """Entries of the prompt tokens that follow those of the chunk with logits, if they are asked for and not there yet."""
    request = chunk.request
    top = request.sampler.params.prompt_logprobs
    if top is None:
        return []
    end = request.num_computed + chunk.count + 1
    followed = request.tokens[end - chunk.num_outputs : end]
    return token_logprobs(list(logits[: len(followed)]), followed, top=top, vocab_limit=request.sampler.vocab_limit)
