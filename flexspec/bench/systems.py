"""All of our own systems over one compiled LLM, each SSM compiled once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.api.compile import compile
from flexspec.api.engine import make_engine
from flexspec.api.llm import LLM
from flexspec.bench.config import BenchConfig
from flexspec.bench.drafters_again import drafters_again
from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.hot_path import check_hot_path
from flexspec.bench.report import PLAIN, SPECULATIVE
from flexspec.bench.system_spec import SystemSpec, union_of_drafters
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.drafters.synthetic import SYNTHETIC, SyntheticDrafter
from flexspec.runtime.engine import Engine


@dataclass(frozen=True, kw_only=True)
class CompiledDrafters:
    """One compiled LLM with the drafters of all systems.

    Attributes:
        llm: the LLM; its own engine serves the main system if that has all of the drafters, and none otherwise.
        ssms: what its drafters were made of, the main system's first.
        specs: the systems that draft, the main one first if it does.
        places: of each system's drafters among `ssms`.
        synthetic: the drafter of that kind, if there is one.
    """

    llm: LLM
    ssms: Sequence[Any]
    specs: Sequence[SystemSpec]
    places: Sequence[Sequence[int]]
    synthetic: SyntheticDrafter | None

    @property
    def whole_models(self) -> list[Any]:
        """Those of `ssms` that are models with a text of their own, unlike heads; the main system's first."""
        drafters = zip(self.ssms, self.llm.drafters, strict=True)
        return [ssm for ssm, drafter in drafters if isinstance(drafter, SsmDrafter) and drafter is not ssm]


def compile_drafters(config: BenchConfig) -> CompiledDrafters:
    """Compile the LLM and every SSM that a system of the benchmark asks for.

    Raises:
        UsageError: as `flexspec.compile`, and if a model can't be measured as it was compiled.
    """
    specs = config.systems()
    ssms, places = union_of_drafters(specs)
    synthetic = None if config.synthetic_acceptance is None else SyntheticDrafter(config.synthetic_acceptance)
    given = [synthetic if synthetic is not None and ssm == SYNTHETIC else ssm for ssm in ssms]
    llm = compile(
        config.model,
        given,
        dtype=config.dtype,
        device=config.device,
        kv_cache_dtype=config.kv_cache_dtype,
        tree=config.tree,
        verifier=config.verifier,
        max_batch=max(config.batches),
        statistics=config.statistics,
        log_every_s=config.log_every_s,
    )
    check_hot_path(llm)
    return CompiledDrafters(llm=llm, ssms=given, specs=specs, places=places, synthetic=synthetic)


def make_systems(config: BenchConfig, compiled: CompiledDrafters, loaded: LoadedModel) -> tuple[list[FlexspecSystem], Engine]:
    """The main system if it drafts, plain decoding and the others, and plain decoding's engine.

    Args:
        config: what is measured.
        compiled: for this configuration.
        loaded: the LLM.
    """
    llm = compiled.llm
    plain = make_engine(llm.plan.llm.model, loaded, llm.plan.strategy, drafters=[])
    drafting = [_make(config, compiled, loaded, *each) for each in zip(compiled.specs, compiled.places, strict=True)]
    has_main = bool(compiled.specs) and compiled.specs[0].name == SPECULATIVE
    drafting.insert(int(has_main), FlexspecSystem(PLAIN, plain, config.settings))
    return drafting, plain


def _make(config: BenchConfig, compiled: CompiledDrafters, loaded: LoadedModel, spec: SystemSpec, places: Sequence[int]) -> FlexspecSystem:
    llm = compiled.llm
    strategy = llm.plan.strategy.replaced(tree=spec.tree)
    is_main = spec.name == SPECULATIVE
    drafters: Sequence[Drafter] = llm.drafters
    if is_main and len(places) == len(compiled.ssms):
        engine = llm.own_engine
    else:
        drafters = drafters_again(llm, compiled.ssms, strategy.tree, places=places)
        # What the main system learns is what `LLM.save_statistics` writes.
        learned, log_every_s = (llm.engine.acceptance, config.log_every_s) if is_main else (None, None)
        engine = make_engine(llm.plan.llm.model, loaded, strategy, drafters=drafters, acceptance=learned, log_every_s=log_every_s)
    return FlexspecSystem(spec.name, engine, config.settings, drafters=drafters, tree=strategy.tree)
