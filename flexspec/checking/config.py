"""What a check is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.bench.drafters_again import given_drafters
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.verifiers.registry import VERIFIERS
from flexspec.tree_shape import TreeLimits, TreeSpec, parse_tree

WALKS = ("greedy", "coupled")
"""Verifiers whose text equals plain decoding's, token for token; of all others the distribution is tested."""
_STATIC = TreeSpec(widths=(2, 2, 1, 1))


@dataclass(frozen=True, kw_only=True)
class CheckConfig:
    """What is checked.

    Attributes:
        model: as `flexspec.compile` takes it.
        ssms: likewise.
        tokenizer: likewise.
        dtype: likewise.
        device: likewise.
        kv_cache_dtype: likewise.
        allow_reference_kernels: likewise.
        tree: likewise.
        verifiers: by name; None for all that are registered.
        max_tokens: new tokens of a text that is compared.
        samples: texts drawn for each chi-square test.
    """

    model: Any
    ssms: Sequence[Any] | None = None
    tokenizer: Any = None
    dtype: str | None = None
    device: str | None = None
    kv_cache_dtype: str = "auto"
    allow_reference_kernels: bool = False
    tree: str | None = None
    verifiers: Sequence[str] | None = None
    max_tokens: int = 64
    samples: int = 512

    def check(self) -> None:
        """Find mistakes before they cost a compilation.

        Raises:
            UsageError: if a value is not allowed, or there are no drafters.
        """
        if self.samples < 1:
            raise UsageError(f"samples={self.samples} is not allowed: give a whole number of at least 1")
        SamplingParams(max_tokens=self.max_tokens)
        for name in self.verifiers or ():
            VERIFIERS.get(name)
        if not given_drafters(self.model, self.ssms):
            raise UsageError("there is nothing to check without drafters: give at least one --ssm, for example --ssm ngram")
        self.trees()

    def trees(self) -> tuple[TreeSpec, TreeLimits]:
        """A static tree and the limits of adaptive ones: `tree` is one of them."""
        tree = TreeLimits() if self.tree is None else parse_tree(self.tree)
        return (_STATIC, tree) if isinstance(tree, TreeLimits) else (tree, TreeLimits())

    def walks(self) -> list[str]:
        """The verifiers whose text is compared with plain decoding's."""
        return [name for name in self._names() if name in WALKS]

    def samplers(self) -> list[str]:
        """The verifiers whose distribution is tested."""
        return [name for name in self._names() if name not in WALKS]

    def _names(self) -> list[str]:
        return VERIFIERS.names() if self.verifiers is None else list(dict.fromkeys(self.verifiers))
