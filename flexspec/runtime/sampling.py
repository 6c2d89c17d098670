"""How one request chooses tokens: its parameters, its noise, and the distribution at a node."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.candidates import Candidates
from flexspec.runtime.distribution import Distribution, Float64
from flexspec.runtime.draws import Draws, KeyedDraws
from flexspec.runtime.logit_rules.base import LogitRule
from flexspec.runtime.randomness import GUMBEL_STREAM, MAX_GUMBEL, KeyedNoise, bits_above, to_gumbel

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]

_FIRST_SPREAD = 6.0
"""How far below the likeliest token, in units of log probability, the search for survivors starts."""
_LOW_ALPHA = 0.6
"""Up to this trust in the noise, tokens far below the likeliest one are not worth their noise when drafting."""
_DRAFT_SPREAD = 5.0
_FEWEST_CANDIDATES = (16, 32)
_MOST_CANDIDATES = 64
"""How far below the likeliest token, how many at least, with a low and a high trust, and how many at most get noise when
drafting. With SmolLM2 and its pruned self at temperature 1, the 16 likeliest lose one in 70 of the hits of four children
at alpha 0.5; at alpha 1 the 32 likeliest lose one in 40 and the 64 likeliest one in 120, of one child one in 60 and none."""
_WHOLE_SPREAD = 1e6
"""From this distance on, all that are not banned are within reach."""
_LOWEST = float(np.finfo(np.float32).min)
_OVERFLOWS_BELOW = 1e-200
"""At temperatures from here down, scores of float32 logits may leave the range of float64."""
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

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.params.greedy

    def draws(self, index: int, stream: int) -> Draws:
        """A fresh sequence of decisions for text position `index`; each (index, stream) is for one use."""
        return KeyedDraws(self._noise, index=index, stream=stream)

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
            return self._noisy_top(self._scores(values, values[top]), 1, 1.0, index)[0].item()
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
        candidates = self.candidates(logits, index, k, alpha, path, is_for_noise=alpha > 0)
        if alpha > 0:
            (candidates,) = self.with_noise([candidates], index)
        places, scores = candidates.best(k, alpha)
        return candidates.ids[places], scores

    def candidates(
        self,
        logits: torch.Tensor,
        index: int,
        k: int,
        alpha: float,
        path: Sequence[int] = (),
        *,
        is_for_noise: bool,
        is_exact: bool = True,
        token_ids: Int64 | None = None,
    ) -> Candidates:
        """What `perturbed_top` chooses from: the likeliest tokens, and with a high `alpha` also the best `k` whatever their q.

        Args:
            logits: [vocab] float32.
            index: position in the whole text of the tokens that are drafted.
            k: the fewest wanted.
            alpha: trust in the noise.
            path: the drafted tokens between the text and these.
            is_for_noise: whether `with_noise` comes next: then more are needed, but at temperature 0.
            is_exact: False for the likeliest tokens alone at any `alpha`, at a fifth of the cost.
            token_ids: [vocab] ascending, the token of each logit; None for 0, 1, 2, …

        Raises:
            NonFiniteLogitsError: if there are NaNs; `NothingAllowedError` if rules ban all tokens.
        """
        values, top = self._values(logits, path, token_ids)
        k = min(k, len(values))
        is_noisy = is_for_noise and not self.greedy
        fewest = 0 if not is_noisy else _FEWEST_CANDIDATES[alpha > _LOW_ALPHA]
        ids = self._near(values, top, max(k, fewest), _DRAFT_SPREAD)
        count = max(k, _MOST_CANDIDATES)
        if len(ids) > count:
            near = values[ids]
            ids = ids[near >= np.partition(near, len(ids) - count)[len(ids) - count]]
        if is_noisy and is_exact and alpha > _LOW_ALPHA:
            ids = np.union1d(ids, self._noisy_top(self._scores(values, values[top]), k, alpha, index, token_ids)[0])
        return Candidates(ids=_tokens(ids, token_ids), scores=self._scores(values[ids], values[top]))

    def with_noise(self, candidates: Sequence[Candidates], index: int) -> list[Candidates]:
        """Those of several nodes at text position `index` with its noise, drawn once for all; at temperature 0 without."""
        if self.greedy or not candidates:
            return list(candidates)
        ids = candidates[0].ids if len(candidates) == 1 else np.unique(np.concatenate([one.ids for one in candidates]))
        noise = self._noise.gumbel(ids, index=index)
        return [replace(one, noise=noise[np.searchsorted(ids, one.ids)]) for one in candidates]

    def _values(self, logits: torch.Tensor, path: Sequence[int], token_ids: Int64 | None = None) -> tuple[Float32, int]:
        """The logits that count here, rules applied, and the place of the first of the largest."""
        count = self.vocab_limit if token_ids is None else int(np.searchsorted(token_ids, self.vocab_limit))
        raw: Float32 = logits.detach().numpy()[:count]
        values = raw
        if self._rules:
            if token_ids is None:
                values = raw.copy()
            else:
                # Rules go by token ids, and what follows needs no more than the tokens that there are logits of.
                values = np.full(self.vocab_limit, -np.inf, dtype=np.float32)
                values[token_ids[:count]] = raw
            for rule in self._rules:
                rule.apply(values, path)
            if token_ids is not None:
                values = values[token_ids[:count]]
        top = int(values.argmax())
        if not math.isfinite(values[top]):
            raise self._no_maximum(raw, values[top])
        return values, top

    def _no_maximum(self, raw: Float32, peak: np.float32) -> NonFiniteLogitsError:
        if self._rules and peak == -np.inf and math.isfinite(raw.max()):
            rules = "; ".join(str(rule) for rule in self._rules)
            return NothingAllowedError(f"no token is left to choose: together these ban all {len(raw)}: {rules}. Loosen one of them")
        return NonFiniteLogitsError(f"the largest of {len(raw)} logits is {peak}")

    def _scores(self, values: Float32, peak: np.float32) -> Float64:
        scores = values.astype(np.float64)
        scores -= float(peak)
        temperature = self.params.temperature or 1.0
        if temperature > _OVERFLOWS_BELOW:
            scores /= temperature
            return scores
        # A tiny temperature sends all but the peak to minus infinity, which is right.
        with np.errstate(over="ignore"):
            scores /= temperature
        return scores

    def _near(self, values: Float32, top: int, at_least: int, spread: float = _FIRST_SPREAD) -> Int64:
        """Ascending ids of all tokens within some distance of the peak, `at_least` of them unless fewer are not banned."""
        ids = self._within(values, top, spread)
        if len(ids) < at_least:
            at_least = min(at_least, _num_finite(values))
        while len(ids) < at_least:
            spread *= 2
            ids = self._within(values, top, spread)
        return ids

    def _within(self, values: Float32, top: int, spread: float) -> Int64:
        """Ascending ids of the tokens at most about `spread` (times the temperature) below the peak, never a banned one."""
        if spread > _WHOLE_SPREAD:
            return (values > -np.inf).nonzero()[0]
        floor = max(float(values[top]) - spread * (self.params.temperature or 1.0), _LOWEST)
        # Rounding the floor to float32 keeps out no float32 value above it.
        return (values >= np.float32(floor)).nonzero()[0]

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
            complete = spread >= reach or spread > _WHOLE_SPREAD or len(ids) == len(values)
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

    def _noisy_top(self, scores: Float64, k: int, alpha: float, index: int, token_ids: Int64 | None = None) -> tuple[Int64, Float64]:
        """Places of the best `k` by score + alpha * noise, and these; a number is drawn for every token, few logarithms taken."""
        if token_ids is None:
            raw = self._noise.bits(0, len(scores), index=index, stream=GUMBEL_STREAM)
        else:
            raw = self._noise.gumbel_bits(token_ids[: len(scores)], index=index)
        spread = _FIRST_SPREAD
        near = np.flatnonzero(scores >= -spread)
        if len(near) < k:
            k = min(k, _num_finite(scores))
        while len(near) < k:
            spread *= 2
            near = np.flatnonzero(scores >= -spread)
        reached = np.partition(scores[near] + alpha * to_gumbel(raw[near]), len(near) - k)[len(near) - k]
        # Any other token starts below -spread, so only a noise above this can lift it past the k-th best.
        needed = (float(reached) + spread) / alpha
        far = np.flatnonzero((raw < np.uint64(bits_above(needed))) & (scores < -spread)) if needed < MAX_GUMBEL else near[:0]
        ids = np.union1d(near, far)
        noisy = scores[ids] + alpha * to_gumbel(raw[ids])
        order = np.argsort(-noisy, kind="stable")[:k]
        return ids[order], noisy[order]


def _tokens(places: Int64, token_ids: Int64 | None) -> Int64:
    """The tokens of the logits at `places`."""
    return places if token_ids is None else token_ids[places]


def _num_finite(values: Float32 | Float64) -> int:
    return int(np.count_nonzero(values > -np.inf))
