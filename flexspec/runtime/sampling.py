"""How one request chooses tokens: its parameters, its noise, and the distribution at a node."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.candidate_search import Sought, find_candidates
from flexspec.runtime.distribution import Distribution, Float64
from flexspec.runtime.draws import Draws, KeyedDraws
from flexspec.runtime.logit_rules.base import LogitRule
from flexspec.runtime.noisy_top import noisy_top
from flexspec.runtime.randomness import KeyedNoise
from flexspec.runtime.tempered import WHOLE_SPREAD, tempered, within

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_FIRST_SPREAD = 6.0
"""How far below the likeliest token, in units of log probability, the search for survivors starts."""
_TOTAL_SPREAD = 16.0
"""How far below the likeliest token mass is added up; what lies further below is bounded by its number times exp(-16)."""
_TOTAL_ERROR = 1e-5
"""Bound of the relative error of the vocabulary's mass summed in float32: three roundings a score, each at most 6e-8 of
it, weighted by the tokens' shares; the mean score is above -20 for any vocabulary."""


class NonFiniteLogitsError(RuntimeError):
    """Logits that contain NaN, or no finite maximum."""


class NothingAllowedError(NonFiniteLogitsError, UsageError):
    """The request's own rules ban every token that the model could choose."""


class RequestSampler:
    """Chooses the tokens of one request, every choice a function of (seed, completion, index) and the logits alone.

    Scores are (logits - max) / temperature in float64; among equal scores the lowest token id comes first, everywhere.

    Args:
        params: the request's own parameters.
        seed: 0 to 2**64 - 1.
        vocab_limit: token ids from here on are padding and are never chosen.
        completion: which of the completions of one prompt this is.
        rules: change the logits at a node before everything else, in this order; they see the node's own path.
    """

    def __init__(
        self, params: SamplingParams, *, seed: int, vocab_limit: int, completion: int = 0, rules: Sequence[LogitRule] = ()
    ) -> None:
        self.params = params
        self.seed = seed
        self.vocab_limit = vocab_limit
        self.completion = completion
        self._noise = KeyedNoise(seed, completion)
        self._rules = tuple(rules)
        self._temperature = params.temperature or 1.0  # of scores
        self._counted_ids: Int64 | None = None  # of which `_num_columns` may be chosen
        self._num_columns = 0

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.params.greedy

    @property
    def has_rules(self) -> bool:
        """Whether there are rules, so that the path to a node matters."""
        return bool(self._rules)

    def draws(self, index: int, stream: int) -> Draws:
        """A fresh sequence of decisions for text position `index`; each (index, stream) is for one use."""
        return KeyedDraws(self._noise, index=index, stream=stream)

    def uniforms(self, count: int, index: int, stream: int) -> Float64:
        """The numbers behind the first `count` decisions of `draws(index, stream)`, where a device makes these."""
        return KeyedDraws(self._noise, index=index, stream=stream).uniforms(count)

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by `tokens`, which are final; its prompt comes first."""
        for rule in self._rules:
            rule.extend(tokens)

    def pick(self, logits: torch.Tensor, index: int, path: Sequence[int] = ()) -> int:
        """The token of plain sampling at text position `index`: argmax of log p plus the noise of that position.

        Args:
            logits: [vocab] float32.
            index: position of the chosen token in the whole text, counted from 0.
            path: the drafted tokens between the text and the chosen token.

        Raises:
            NonFiniteLogitsError: if there are NaNs; `NothingAllowedError` if rules ban all tokens.
        """
        values, top = self._values(logits, path)
        if self.greedy:
            return top
        ids = self._survivors(values, top)
        if ids is None:
            return noisy_top(self._noise, self._scores(values, values[top]), 1, 1.0, index)[0].item()
        if len(ids) == 1:
            return int(ids[0])
        scores = self._scores(values[ids], values[top]) + self._noise.gumbel(ids, index=index)
        return int(ids[np.argmax(scores)])

    def distribution(self, logits: torch.Tensor, path: Sequence[int] = (), *, token_ids: Int64 | None = None) -> Distribution:
        """The request's distribution: temperature, then top_k, top_p and min_p, normalised in float64.

        Args:
            logits: [vocab] float32.
            path: the drafted tokens between the text and the token that is distributed so.
            token_ids: [vocab] ascending, the token of each logit; None for 0, 1, 2, …

        Raises:
            NonFiniteLogitsError: if there are NaNs; `NothingAllowedError` if rules ban all tokens.
        """
        values, top = self._values(logits, path, token_ids)
        if self.greedy:
            return Distribution(ids=_tokens(np.array([top], dtype=np.int64), token_ids), probs=np.ones(1))
        ids = self._survivors(values, top)
        if ids is None:
            ids = np.arange(len(values), dtype=np.int64)
        weights = np.exp(self._scores(values[ids], values[top]))
        kept = weights > 0
        ids, weights = ids[kept], weights[kept]
        return Distribution(ids=_tokens(ids, token_ids), probs=weights / weights.sum())

    def perturbed_top(self, logits: torch.Tensor, index: int, k: int, alpha: float, path: Sequence[int] = ()) -> tuple[Int64, Float64]:
        """The best `k` tokens by log q + alpha * noise, q tempered but not truncated: what to draft for `index`.

        With a low `alpha` only the likeliest tokens get noise; with a high one the result is exact, so that a model that
        drafts for itself at alpha 1 proposes what it will pick.

        Returns:
            [k'] token ids, best first, and [k'] their scores; k' < k only if fewer are in the vocabulary or allowed.

        Raises:
            NonFiniteLogitsError: if there are NaNs.
        """
        values, _ = self._values(logits, path)
        candidates, _ = find_candidates(values[np.newaxis], [self.sought(1, index, k, alpha, with_noise=alpha > 0)])
        order, scores = candidates.order([alpha])
        return candidates.ids[order[:k]], scores[order[:k]]

    def sought(self, nodes: int, position: int, k: int, alpha: float, *, with_noise: bool = True, is_exact: bool = True) -> Sought:
        """What `find_candidates` is to look for at nodes of this request.

        Args:
            nodes: how many.
            position: in the whole text, of the tokens that are drafted.
            k: the fewest wanted.
            alpha: trust in the noise.
            with_noise: whether the noise counts at all; at temperature 0 it never does.
            is_exact: False for the likeliest tokens alone at any `alpha`, at a fifth of the cost.
        """
        noise = self._noise if with_noise and not self.greedy else None
        return Sought(nodes=nodes, k=k, temperature=self._temperature, noise=noise, position=position, alpha=alpha, is_exact=is_exact)

    def ruled(self, logits: Float32, path: Sequence[int], token_ids: Int64 | None = None) -> Float32:
        """The logits that count here, rules applied; to be read only.

        Args:
            logits: [vocab] float32; not changed.
            path: the drafted tokens between the text and these.
            token_ids: [vocab] ascending, the token of each logit; None for 0, 1, 2, …

        Raises:
            UsageError: if a rule can do nothing with the path.
        """
        raw = logits[: self.columns(token_ids)]
        if not self._rules:
            return raw
        if token_ids is None:
            values = raw.copy()
        else:
            # Rules go by token ids, and what follows needs no more than the tokens that there are logits of.
            values = np.full(self.vocab_limit, -np.inf, dtype=np.float32)
            values[token_ids[: len(raw)]] = raw
        for rule in self._rules:
            rule.apply(values, path)
        return values if token_ids is None else values[token_ids[: len(raw)]]

    def columns(self, token_ids: Int64 | None) -> int:
        """How many logits at most are those of tokens that may be chosen; arguments as `ruled`."""
        if token_ids is None:
            return self.vocab_limit
        if token_ids is not self._counted_ids:
            self._counted_ids, self._num_columns = token_ids, int(token_ids.searchsorted(self.vocab_limit))
        return self._num_columns

    def no_maximum(self, logits: Float32, peak: float) -> NonFiniteLogitsError:
        """What is wrong with logits of which `ruled` left the largest at `peak`, which is not finite."""
        if self._rules and peak == -np.inf and math.isfinite(logits.max()):
            rules = "; ".join(str(rule) for rule in self._rules)
            return NothingAllowedError(f"no token is left to choose: together these ban all {len(logits)}: {rules}. Loosen one of them")
        return NonFiniteLogitsError(f"the largest of {len(logits)} logits is {peak}")

    def _values(self, logits: torch.Tensor, path: Sequence[int], token_ids: Int64 | None = None) -> tuple[Float32, int]:
        """The logits that count here, rules applied, and the place of the first of the largest."""
        raw: Float32 = logits.detach().numpy()
        values = self.ruled(raw, path, token_ids)
        top = int(values.argmax())
        if not math.isfinite(values[top]):
            raise self.no_maximum(raw[: len(values)], float(values[top]))
        return values, top

    def _scores(self, values: Float32, peak: np.float32) -> Float64:
        return tempered(values, peak, self._temperature)

    def _within(self, values: Float32, top: int, spread: float) -> Int64:
        return within(values, float(values[top]), spread, self._temperature)

    def _survivors(self, values: Float32, top: int) -> Int64 | None:
        """Ascending ids that top_k, top_p and min_p keep; None if nothing truncates."""
        params = self.params
        top_k = params.top_k if 0 < params.top_k < len(values) else 0
        if not top_k and params.top_p == 1 and params.min_p == 0:
            return None
        # Every rule keeps a prefix of the order by logit, so it is enough to look at a set of top logits that reaches
        # beyond the rule; how far is found by doubling, which spares the sorting of the whole vocabulary.
        # min_p bounds the set from the outset, unless top_p needs the mass of all that top_k keeps.
        reach = math.inf if params.min_p == 0 or (top_k and params.top_p < 1) else -math.log(params.min_p) + 1e-3
        spread = min(_FIRST_SPREAD, reach)
        total = None if top_k or params.top_p == 1 else self._total_bounds(values, top)
        while True:
            ids = self._within(values, top, spread)
            if len(ids) < top_k:
                top_k = min(top_k, _num_finite(values))
            complete = spread >= reach or spread > WHOLE_SPREAD or len(ids) == len(values)
            if complete or not top_k or len(ids) >= top_k:
                ids, found = self._prefix(values, top, ids, top_k, total)
                if found or complete:
                    break
            spread = min(2 * spread, reach)
        if params.min_p > 0:
            ids = ids[np.exp(self._scores(values[ids], values[top])) >= params.min_p]
        return ids

    def _prefix(self, values: Float32, top: int, ids: Int64, top_k: int, total: tuple[float, float] | None) -> tuple[Int64, bool]:
        """Ascending: the first of `ids` by logit that top_k and then top_p keep; and whether no other id can be among them.

        With min_p alone all of `ids` are kept, and there may be others.
        """
        if not top_k and self.params.top_p == 1:
            return ids, False
        ids = ids[np.argsort(-values[ids], kind="stable")]
        if top_k:
            ids = ids[:top_k]
        found = True
        if self.params.top_p < 1:
            mass = np.cumsum(np.exp(self._scores(values[ids], values[top])))
            if total is None:
                edge = int(np.searchsorted(mass, self.params.top_p * mass[-1]))
            else:
                edge, last = (int(np.searchsorted(mass, self.params.top_p * bound)) for bound in total)
                found = last < len(mass)
                if edge != last:
                    edge = int(np.searchsorted(mass, self.params.top_p * np.exp(self._scores(values, values[top])).sum()))
            ids = ids[: edge + 1]
        return np.sort(ids), found

    def _total_bounds(self, values: Float32, top: int) -> tuple[float, float]:
        """Bounds of the mass of the whole vocabulary, the peak having 1: a fraction of the cost of the exact one."""
        ids = self._within(values, top, _TOTAL_SPREAD)
        if len(ids) <= len(values) // 4:
            near = float(np.exp(self._scores(values[ids], values[top])).sum())
            far = (len(values) - len(ids)) * math.exp(-_TOTAL_SPREAD)
            return near * (1 - 1e-12), (near + far) * (1 + 1e-12)
        with np.errstate(over="ignore"):
            scores = (values - values[top]) / np.float32(min(max(self.params.temperature, 1e-30), 1e30))
        rough = float(np.exp(scores).sum())
        return rough * (1 - _TOTAL_ERROR), rough * (1 + _TOTAL_ERROR)


def _tokens(places: Int64, token_ids: Int64 | None) -> Int64:
    """The tokens of the logits at `places`."""
    return places if token_ids is None else token_ids[places]


def _num_finite(values: Float32) -> int:
    return int(np.count_nonzero(values > -np.inf))
