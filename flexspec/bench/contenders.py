"""What is asked of a comparison of verifiers, and who takes part."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.bench.drafters_again import given_drafters
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.verifiers.registry import VERIFIERS
from flexspec.tree_shape import TreeLimits, TreeSpec, parse_tree

COUPLED = "coupled"
NAIVE = "naive sampling"
"""Draws from the large model and accepts what is among the drafter's likeliest: coupled without trust in the noise, alpha 0."""
_NOT_SAMPLING = "greedy"
_LADDER = ("mss", "without_replacement", "traversal")
"""From the paper's own on, each meant to accept more than the one before; what else there is comes ahead of them."""
ALPHAS: tuple[float | None, ...] = (0.0, 0.5, 1.0, None)
"""Trust in the shared noise; None is learned."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A verifier with its drafters.

    Attributes:
        verifier: by name.
        alpha: of the drafters, None if they learn it; other verifiers than coupled don't use it.
    """

    verifier: str
    alpha: float | None = None

    @property
    def is_naive(self) -> bool:
        """Whether this is naive sampling."""
        return self.verifier == COUPLED and self.alpha == 0

    @property
    def learns(self) -> bool:
        """Whether its drafters learn alpha."""
        return self.verifier == COUPLED and self.alpha is None

    def __str__(self) -> str:
        if self.verifier != COUPLED:
            return self.verifier
        if self.is_naive:
            return NAIVE
        return f"coupled, alpha {'learned' if self.alpha is None else f'{self.alpha:g}'}"


@dataclass(frozen=True, kw_only=True)
class ComparisonConfig:
    """What is compared.

    Attributes:
        model: as `flexspec.compile` takes it.
        tree: of static widths.
        temperatures: above 0.
        ssms: as `flexspec.compile` takes them.
        dtype: likewise.
        device: likewise.
        kv_cache_dtype: likewise.
        allow_reference_kernels: likewise.
        top_p: 1 keeps all tokens.
        max_tokens: most new tokens of a text.
        alphas: of the coupled verifier's drafters; None learns.
        repeat: texts of each prompt.
        batch: texts that run at a time.
    """

    model: str
    tree: str
    temperatures: Sequence[float]
    ssms: Sequence[str] | None = None
    dtype: str | None = None
    device: str | None = None
    kv_cache_dtype: str = "auto"
    allow_reference_kernels: bool = False
    top_p: float = 1.0
    max_tokens: int = 64
    alphas: Sequence[float | None] = ALPHAS
    repeat: int = 1
    batch: int = 8

    def check(self) -> TreeSpec:
        """Find mistakes before they cost a compilation, and read the tree.

        Raises:
            UsageError: if a value is not allowed.
        """
        for name in ("repeat", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}={getattr(self, name)} is not allowed: give a whole number of at least 1")
        if not self.temperatures or min(self.temperatures) <= 0:
            raise UsageError(f"temperatures={list(self.temperatures)} are not allowed: give at least one, all above 0")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature, top_p=self.top_p, max_tokens=self.max_tokens)
        for alpha in self.alphas:
            if alpha is not None and not 0 <= alpha <= 1:
                raise UsageError(f"alpha={alpha} is not allowed: give a number from 0 to 1, or learned")
        if not given_drafters(self.model, self.ssms):
            raise UsageError("there is nothing to compare without drafters: give at least one --ssm, for example --ssm prune:26")
        return _static(self.tree)

    def contenders(self) -> list[Contender]:
        """As in the paper's Table 3 and on from there: naive sampling, the verifiers that sample, coupled with each further alpha."""
        others = [name for name in VERIFIERS.names() if name not in (_NOT_SAMPLING, COUPLED, *_LADDER)]
        coupled = [Contender(verifier=COUPLED, alpha=alpha) for alpha in self.alphas]
        naive, trusting = [one for one in coupled if one.is_naive], [one for one in coupled if not one.is_naive]
        return [*naive, *(Contender(verifier=name) for name in (*others, *_LADDER)), *trusting]


def _static(text: str) -> TreeSpec:
    tree = parse_tree(text)
    if isinstance(tree, TreeLimits) or not tree.depth:
        raise UsageError(f"tree={text!r} is not allowed: verifiers are compared on equal trees, so give widths, for example 2,2,1")
    return tree
