"""What a benchmark is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flexspec.bench.drafters_again import given_drafters
from flexspec.bench.measurement import GenerationSettings
from flexspec.bench.peers import PEERS
from flexspec.bench.report import SPECULATIVE
from flexspec.bench.system_spec import SystemSpec, parse_system
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.drafters.synthetic import SYNTHETIC
from flexspec.runtime.verifiers.legality import allows_adaptive, check_pair
from flexspec.runtime.verifiers.registry import AUTO
from flexspec.tree_shape import Tree, TreeLimits, parse_tree

_REMEMBERING = "suffix:history"


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured.

    Attributes:
        model: as `flexspec.compile` takes it.
        settings: what is generated.
        ssms: of the main system, as `flexspec.compile` takes them.
        dtype: likewise; every peer gets the same.
        device: likewise; peers run on the CPU only.
        kv_cache_dtype: likewise.
        tree: likewise, of the main system and of others that name none.
        verifier: likewise, of all systems.
        also: further systems over the same compiled models, as `parse_system` reads them.
        against: names of peers.
        batches: prompts that run at a time: each number is a measurement of its own.
        repeat: how often each group of prompts is measured; medians count.
        warm_up: groups of prompts that run through every system before, unmeasured.
        synthetic_acceptance: drafts of the main system are right with this probability, and come from no drafter; None for real ones.
        statistics: as `flexspec.compile` takes it, for the main system.
        log_every_s: likewise.
    """

    model: str
    settings: GenerationSettings
    ssms: Sequence[str] | None = None
    dtype: str | None = None
    device: str | None = None
    kv_cache_dtype: str = "auto"
    tree: str | None = None
    verifier: str | None = None
    also: Sequence[str] = ()
    against: Sequence[str] = ()
    batches: Sequence[int] = (1,)
    repeat: int = 1
    warm_up: int = 1
    synthetic_acceptance: float | None = None
    statistics: Path | None = None
    log_every_s: float | None = None

    def check(self) -> None:
        """Find mistakes before they cost a compilation.

        Raises:
            UsageError: if a value is not allowed, or values do not go together.
        """
        settings = self.settings
        SamplingParams(max_tokens=settings.max_tokens, temperature=settings.temperature, top_p=settings.top_p)
        for name in ("repeat", "warm_up"):
            value = getattr(self, name)
            if value < 1:
                raise UsageError(f"{name.replace('_', '-')}={value} is not allowed: give a whole number of at least 1")
        self._check_batches()
        for peer in self.against:
            PEERS.get(peer)
        if self.against and self.device not in (None, "cpu"):
            raise UsageError(
                f"device={self.device!r} is not allowed with peers ({', '.join(self.against)}), which run on the CPU: leave out one"
            )
        self._check_synthetic()
        remembers = any(_REMEMBERING in system.drafters for system in self.systems())
        if remembers and (self.repeat > 1 or len(self.batches) > 1):
            told = f"repeat={self.repeat}" if self.repeat > 1 else f"batch={_listed(self.batches)}"
            raise UsageError(f"{told} is not allowed with {_REMEMBERING}, which would recall the first turn: give a single one")

    def systems(self) -> list[SystemSpec]:
        """Our systems that draft: the main one, if it has drafters, and the others.

        Raises:
            UsageError: if one can't be read, is measured already, or its tree does not go with the verifier.
        """
        verifier = self.verifier or AUTO
        drafters = (SYNTHETIC,) if self.synthetic_acceptance is not None else tuple(given_drafters(self.model, self.ssms))
        tree: Tree | None = None if self.tree is None else parse_tree(self.tree)
        if tree is None and allows_adaptive(verifier):
            tree = TreeLimits()
        systems = [SystemSpec(name=SPECULATIVE, drafters=drafters, tree=tree)] if drafters else []
        for text in self.also:
            other = parse_system(text, main_drafters=drafters, main_tree=tree)
            if any((other.drafters, other.tree) == (known.drafters, known.tree) for known in systems):
                raise UsageError(f"also={text!r} is measured already: give other drafters or another tree, each once")
            systems.append(other)
        for system in systems:
            if system.tree is not None:
                check_pair(verifier, system.tree)
        return systems

    def _check_batches(self) -> None:
        if not self.batches or min(self.batches) < 1 or len(set(self.batches)) < len(self.batches):
            raise UsageError(
                f"batch={_listed(self.batches)} is not allowed: give whole numbers of at least 1, each once, for example 1,4,8"
            )
        if self.against and 1 not in self.batches:
            raise UsageError(
                f"batch={_listed(self.batches)} is not allowed with peers ({', '.join(self.against)}), which take one prompt at a time: "
                "give 1 among the batch sizes"
            )

    def _check_synthetic(self) -> None:
        probability = self.synthetic_acceptance
        if probability is None:
            return
        if not 0 <= probability <= 1:
            raise UsageError(f"synthetic-acceptance={probability} is not allowed: give a probability from 0 to 1")
        if self.ssms is not None:
            raise UsageError(f"synthetic-acceptance={probability} takes the place of drafters: leave out --ssm {' '.join(self.ssms)}")
        if not allows_adaptive(self.verifier or AUTO):
            raise UsageError(
                f"synthetic-acceptance={probability} is not allowed with verifier={self.verifier!r}, whose text is not the one that plain "
                "decoding draws with the same seed: leave out --verifier"
            )


def _listed(batches: Sequence[int]) -> str:
    return ",".join(map(str, batches))
