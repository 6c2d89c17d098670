"""Exact laws of speculative sampling: what is drafted, what is verified, what comes out."""

from collections.abc import Callable, Sequence

import torch

from flexspec.config import SamplingParams
from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.verifiers.base import Verifier
from oracles.enumerate import EnumeratedDraws, law
from oracles.proposals import Propose, Table, Text

ROOT: Text = (0,)
MakeSampler = Callable[[Text, Draws], RequestSampler]
Logits = Callable[[Text], torch.Tensor]


class TableSampler(RequestSampler):
    """A sampler whose `logits` are a text's tokens, looked up in a table of distributions, and whose draws are given."""

    def __init__(self, table: Table, draws: Draws) -> None:
        super().__init__(SamplingParams(temperature=1.0), seed=0, vocab_limit=1 << 20)
        self._table = table
        self._draws = draws

    def distribution(self, logits: torch.Tensor, path: Sequence[int] = ()) -> Distribution:
        text = tuple(logits.tolist())
        assert text[len(text) - len(path) :] == tuple(path), f"the path to a node is {text}, not {path}"
        return self._table(text)

    def draws(self, index: int, stream: int = 0) -> Draws:
        return self._draws


def step(text: Text, propose: Propose, verifier: Verifier, logits: Logits, sampler: RequestSampler, draws: Draws) -> Text:
    """The text after one speculative step."""
    tree = propose(text, draws)
    paths: list[Text] = [text]
    for node in range(1, len(tree.tokens)):
        paths.append((*paths[tree.parents[node]], tree.tokens[node]))
    verdict = verifier.verify(tree, lambda node: logits(paths[node]), sampler, len(text))
    assert verdict.path[0] == 0 and all(tree.parents[node] == above for above, node in zip(verdict.path, verdict.path[1:], strict=False))
    return (*paths[verdict.path[-1]], verdict.bonus)


def largest_error(
    propose: Propose,
    verifier: Verifier,
    p: Table,
    *,
    horizon: int,
    steps: int = 1,
    limit: int = 2_000,
    logits: Logits = torch.tensor,
    make_sampler: MakeSampler | None = None,
) -> float:
    """Largest difference between the law of the next `horizon` tokens and the LLM's, over all texts.

    `steps` steps are made, longer texts cut and shorter ones completed with the LLM.

    Args:
        propose: drafts.
        verifier: what is tested.
        p: the LLM's distribution after a text.
        horizon: tokens that are compared.
        steps: speculative steps in a row.
        limit: most outcomes.
        logits: what the verifier gets of a text, and the sampler reads.
        make_sampler: the sampler of a request whose text is given; by default it reads the text from `logits` and looks it up in `p`.
    """
    length = len(ROOT) + horizon

    def program(draws: EnumeratedDraws) -> Text:
        text = ROOT
        for _ in range(steps):
            if len(text) < length:
                sampler = TableSampler(p, draws) if make_sampler is None else make_sampler(text, draws)
                text = step(text, propose, verifier, logits, sampler, draws)
        return text[:length]

    found = completed(law(program, limit=limit), p, length)
    assert abs(sum(found.values()) - 1) < 1e-9
    wanted = completed({ROOT: 1.0}, p, length)
    return max(abs(found.get(text, 0.0) - wanted.get(text, 0.0)) for text in found.keys() | wanted.keys())


def completed(emitted: dict[Text, float], p: Table, length: int) -> dict[Text, float]:
    """The law of texts of `length` tokens when shorter ones go on with the LLM."""
    result: dict[Text, float] = {}
    left = dict(emitted)
    while left:
        text, probability = left.popitem()
        if len(text) == length:
            result[text] = result.get(text, 0.0) + probability
            continue
        following = p(text)
        for token, share in zip(following.ids.tolist(), following.probs.tolist(), strict=True):
            left[(*text, token)] = left.get((*text, token), 0.0) + probability * share
    return result
