"""What users give as SSMs → drafters."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from flexspec.api.devices import ON_CPU, Placement
from flexspec.api.draft_models import hidden_states_for, state_columns
from flexspec.api.lower import Compilation, lower
from flexspec.api.memory import available_memory, check_weights_fit
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError, shown
from flexspec.models.draft_folder import DraftModel
from flexspec.models.head import HEAD_STATE, SpeculationHead
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.prune import PRUNE, parse_prune, prune_layers
from flexspec.models.same_tokenizer import check_same_tokenizer
from flexspec.models.shipped import shipped_names
from flexspec.models.smollm2 import NAME as SMOLLM2
from flexspec.parallel import BESIDE, OWN_DEVICE, ParallelPlan
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.head import HeadDrafter
from flexspec.runtime.drafters.level_drafter import LevelDrafter
from flexspec.runtime.drafters.registry import DRAFTERS, make_drafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.tree_shape import Tree

# Drafters that a model gets when `ssms` is not given.
SHIPPED_DRAFTERS: dict[str, tuple[str, ...]] = {SMOLLM2: ("suffix", f"{SMOLLM2}:head")}


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """The drafters of a compiled model.

    Attributes:
        names: as the user gave them; a drafter's or a module's own where that is no text.
        drafters: in the same order; of equal names all but the first's get a number.
        compilations: of those that are models.
        num_bytes: memory of the SSMs' KV caches.
    """

    names: tuple[str, ...]
    drafters: tuple[Drafter, ...]
    compilations: tuple[Compilation, ...]
    num_bytes: int


def make_drafting(
    ssms: Sequence[Any],
    llm: LoadedModel,
    *,
    tuned: Mapping[int, DraftModel],
    dtype: torch.dtype,
    buckets: Sequence[int],
    store: WeightStore,
    tree: Tree,
    max_batch: int,
    max_len: int,
    native: bool,
    placement: Placement = ON_CPU,
    remote: Mapping[str, CompiledModel] = MappingProxyType({}),
) -> Drafting:
    """Load, check and compile every drafter, SSMs exactly as the LLM.

    Args:
        ssms: as `flexspec.compile` takes them.
        llm: whose drafters they are; it was compiled with `hidden_states_for(tuned)`.
        tuned: those of `ssms` that were tuned to it, by place.
        dtype: of all models.
        buckets: as `lower` takes them, like `store` and `native`.
        store: where weights are shared with the LLM.
        tree: what is drafted.
        max_batch: requests drafted for at once.
        max_len: most tokens of a request.
        native: False keeps to PyTorch operators.
        placement: where they run.
        remote: those that run on devices of their own, by what the user calls them.

    Raises:
        UsageError: if a drafter is unknown, can't be compiled, or has another tokenizer than the LLM.
    """
    drafters: list[Drafter] = []
    compilations: list[Compilation] = []
    names: list[str] = []
    taken: set[str] = set()
    num_bytes = 0
    sizes = {"max_requests": max_batch, "block_size": max_len + tree.num_nodes}
    compiler = _Compiler(
        dtype=dtype,
        buckets=buckets,
        store=store,
        native=native,
        placement=placement,
        states=hidden_states_for(tuned),
        sizes=sizes,
    )
    for place, ssm in enumerate(ssms):
        if isinstance(ssm, str) and ssm in DRAFTERS.names():
            drafter: Drafter = make_drafter(ssm)
            given = ssm
        elif not isinstance(ssm, str | os.PathLike | nn.Module) and all(hasattr(ssm, part) for part in ("name", "propose", "release")):
            if not isinstance(ssm.name, str) or not ssm.name:
                raise UsageError(f"ssm {ssm!r} has the name {ssm.name!r}: give it a non-empty string as its name")
            drafter = ssm
            given = ssm.name
        elif isinstance(ssm, str | os.PathLike) and os.fspath(ssm) in remote:
            given = os.fspath(ssm)
            tokens = tuned[place].token_ids if place in tuned else None
            drafter = SsmDrafter(_unused(given, taken), remote[given], token_ids=None if tokens is None else tokens.numpy(), **sizes)
        else:
            draft = tuned[place] if place in tuned else DraftModel(loaded=load_ssm(ssm, llm), token_ids=None, states=())
            compilation, made = compiler.compile(draft, _unused(draft.loaded.name, taken))
            compilations.append(compilation)
            num_bytes += made.num_bytes
            drafter = made
            given = draft.loaded.name
        if drafter.name in taken:
            raise UsageError(f"ssm {drafter.name!r} is given twice: give each drafter once")
        taken.add(drafter.name)
        names.append(given)
        drafters.append(drafter)
    return Drafting(names=tuple(names), drafters=tuple(drafters), compilations=tuple(compilations), num_bytes=num_bytes)


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    """Compiles draft models; `states` are the LLM's hidden states, side by side in that order."""

    dtype: torch.dtype
    buckets: Sequence[int]
    store: WeightStore
    native: bool
    placement: Placement
    states: Sequence[str]
    sizes: dict[str, int]

    def compile(self, draft: DraftModel, name: str) -> tuple[Compilation, LevelDrafter]:
        """A draft model, and the drafter `name` over it."""
        module = draft.loaded.module
        head = module if isinstance(module, SpeculationHead) else None
        compilation = lower(
            draft.loaded,
            dtype=self.dtype,
            buckets=self.buckets,
            store=self.store,
            native=self.native,
            placement=self.placement,
            hidden_states=() if head is None else (HEAD_STATE,),
            feature_size=0 if head is None else head.head_config.feature_size,
        )
        token_ids = None if draft.token_ids is None else draft.token_ids.numpy()
        if head is None:
            return compilation, SsmDrafter(name, compilation.model, token_ids=token_ids, **self.sizes)
        columns = state_columns(head, self.states)
        return compilation, HeadDrafter(name, compilation.model, columns=columns, token_ids=token_ids, **self.sizes)


def check_own_devices(plan: ParallelPlan, ssms: Sequence[Any], tuned: Mapping[int, DraftModel]) -> None:
    """Refuse a plan that gives a device of its own to what can't have one.

    Args:
        plan: names the drafters.
        ssms: as `flexspec.compile` takes them.
        tuned: those of `ssms` that were tuned, by place.

    Raises:
        UsageError: if it does.
    """
    for name in (name for name, where in plan.placement.items() if where == OWN_DEVICE):
        places = [place for place, ssm in enumerate(ssms) if isinstance(ssm, str | os.PathLike) and os.fspath(ssm) == name]
        if not places:
            named = ", ".join(repr(os.fspath(ssm)) for ssm in ssms if isinstance(ssm, str | os.PathLike)) or "none"
            reason = f"it is not among the ssms ({named})"
        elif name in DRAFTERS.names():
            reason = "it has no model to run there"
        elif places[0] in tuned and tuned[places[0]].states:
            reason = "it reads the model's hidden states"
        else:
            continue
        raise UsageError(f"placement[{name!r}]={OWN_DEVICE!r} is not allowed: {reason}; give {BESIDE!r}, or make a plan for these ssms")


def load_ssm(ssm: Any, llm: LoadedModel) -> LoadedModel:
    """A draft model that users name in `ssms`.

    Raises:
        UsageError: if it is not one, can't be loaded, or has another tokenizer than the LLM.
    """
    if isinstance(ssm, str) and (layers := parse_prune(ssm)) is not None:
        return replace(llm, name=ssm, module=prune_layers(llm.module, layers))
    if not isinstance(ssm, str | os.PathLike | nn.Module):
        raise UsageError(
            f"ssm {shown(ssm)} is a {type(ssm).__name__}: give a model, a drafter by name, or an object with name, propose() and release()"
        )
    check_weights_fit("ssm", ssm, available_memory())
    try:
        loaded = load_model(ssm)
    except UsageError as error:
        if isinstance(ssm, str) and not os.path.exists(ssm):
            known = ", ".join([*DRAFTERS.names(), f"{PRUNE}K", *shipped_names()])
            raise UsageError(f"ssm {ssm!r} is neither a drafter ({known}) nor a model: {error}") from None
        raise
    check_same_tokenizer(llm, loaded)
    return loaded


def _unused(name: str, names: Collection[str]) -> str:
    """`name`, numbered if another drafter has it."""
    count = 2
    unique = name
    while unique in names:
        unique, count = f"{name}#{count}", count + 1
    return unique
