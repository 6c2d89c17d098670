"""What a benchmark is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexspec.bench.drafters_again import given_drafters
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peers import PEERS
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.verifiers.legality import check_pair
from flexspec.runtime.verifiers.registry import AUTO
from flexspec.tree_shape import Tree, parse_tree

_REMEMBERING = "suffix:history"


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured.

    Attributes:
        model: as `flexspec.compile` takes it.
        settings: what is generated.
        ssms: as `flexspec.compile` takes them.
        dtype: likewise; every peer gets the same.
        tree: likewise.
        verifier: likewise.
        also_trees: further trees of the same drafters, each measured as a system of its own.
        against: names of peers.
        batch: prompts that run at a time.
        repeat: how often each group of prompts is measured; medians count.
        warm_up: groups of prompts that run through every system before, unmeasured.
        statistics: as `flexspec.compile` takes it, for the tree of `tree`.
        log_every_s: likewise.
    """

    model: str
    settings: GenerationSettings
    ssms: Sequence[str] | None = None
    dtype: str | None = None
    tree: str | None = None
    verifier: str | None = None
    also_trees: Sequence[str] = ()
    against: Sequence[str] = ()
    batch: int = 1
    repeat: int = 1
    warm_up: int = 1
    statistics: Path | None = None
    log_every_s: float | None = None

    def check(self) -> None:
        """Find mistakes before they cost a compilation.

        Raises:
            UsageError: if a value is not allowed, or values do not go together.
        """
        settings = self.settings
        SamplingParams(max_tokens=settings.max_tokens, temperature=settings.temperature, top_p=settings.top_p)
        for name in ("batch", "repeat", "warm_up"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name.replace('_', '-')}={value} is not allowed: give a whole number of at least 1")
        for peer in self.against:
            PEERS.get(peer)
        if self.against and self.batch > 1:
            raise UsageError(
                f"batch={self.batch} is not allowed with peers ({', '.join(self.against)}), which take one prompt at a time: give batch=1"
            )
        if self.repeat > 1 and self.ssms is not None and _REMEMBERING in self.ssms:
            raise UsageError(f"repeat={self.repeat} is not allowed with {_REMEMBERING}, which would recall the first turn: give repeat=1")
        if self.also_trees and not given_drafters(self.model, self.ssms):
            raise UsageError(f"also-tree={self.also_trees[0]!r} needs a drafter to fill it: give --ssm, for example --ssm ngram")
        self.other_trees()

    def other_trees(self) -> list[Tree]:
        """`also_trees`, read.

        Raises:
            UsageError: if one is not a tree, is measured already, or does not go with the verifier.
        """
        trees: list[Tree] = [] if self.tree is None else [parse_tree(self.tree)]
        others: list[Tree] = []
        for text in self.also_trees:
            tree = parse_tree(text)
            check_pair(self.verifier or AUTO, tree)
            if tree in (*trees, *others):
                raise UsageError(f"also-tree={text!r} is measured already: give other trees than the main one, each once")
            others.append(tree)
        return others
