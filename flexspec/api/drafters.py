"""What users give as SSMs → drafters."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from flexspec.api.lower import Compilation, lower
from flexspec.api.memory import available_memory, check_weights_fit
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.prune import prune_layers
from flexspec.models.same_tokenizer import check_same_tokenizer
from flexspec.models.smollm2 import NAME as SMOLLM2
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.registry import DRAFTERS, make_drafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.tree_shape import Tree

# Drafters that a model gets when `ssms` is not given.
SHIPPED_DRAFTERS: dict[str, tuple[str, ...]] = {SMOLLM2: ("suffix",)}

_PRUNE = "prune:"
_MOST_DIGITS = 9


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
    dtype: torch.dtype,
    buckets: Sequence[int],
    store: WeightStore,
    tree: Tree,
    max_batch: int,
    max_len: int,
    native: bool,
) -> Drafting:
    """Load, check and compile every drafter, SSMs exactly as the LLM.

    Raises:
        UsageError: if a drafter is unknown, can't be compiled, or has another tokenizer than the LLM.
    """
    drafters: list[Drafter] = []
    compilations: list[Compilation] = []
    names: list[str] = []
    taken: set[str] = set()
    num_bytes = 0
    for ssm in ssms:
        if isinstance(ssm, str) and ssm in DRAFTERS.names():
            drafter: Drafter = make_drafter(ssm)
            given = ssm
        elif not isinstance(ssm, str | os.PathLike | nn.Module) and all(hasattr(ssm, part) for part in ("name", "propose", "release")):
            if not isinstance(ssm.name, str) or not ssm.name:
                raise UsageError(f"ssm {ssm!r} has the name {ssm.name!r}: give it a non-empty string as its name")
            drafter = ssm
            given = ssm.name
        else:
            loaded = load_ssm(ssm, llm)
            compilation = lower(loaded, dtype=dtype, buckets=buckets, store=store, native=native)
            compilations.append(compilation)
            block_size = max_len + tree.num_nodes
            made = SsmDrafter(_unused(loaded.name, taken), compilation.model, max_requests=max_batch, block_size=block_size)
            num_bytes += made.num_bytes
            drafter = made
            given = loaded.name
        if drafter.name in taken:
            raise UsageError(f"ssm {drafter.name!r} is given twice: give each drafter once")
        taken.add(drafter.name)
        names.append(given)
        drafters.append(drafter)
    return Drafting(names=tuple(names), drafters=tuple(drafters), compilations=tuple(compilations), num_bytes=num_bytes)


def load_ssm(ssm: Any, llm: LoadedModel) -> LoadedModel:
    """A draft model that users name in `ssms`.

    Raises:
        UsageError: if it is not one, can't be loaded, or has another tokenizer than the LLM.
    """
    if isinstance(ssm, str) and ssm.startswith(_PRUNE):
        count = ssm.removeprefix(_PRUNE)
        if not count.isdecimal() or len(count) > _MOST_DIGITS:
            shown = ssm if len(ssm) <= 40 else f"{ssm[:39]}…"
            raise UsageError(f"ssm {shown!r} is not allowed: give prune:K, K being the number of layers to keep, for example prune:4")
        return replace(llm, name=ssm, module=prune_layers(llm.module, int(count)))
    if not isinstance(ssm, str | os.PathLike | nn.Module):
        raise UsageError(
            f"ssm {ssm!r} is a {type(ssm).__name__}: give a model, a drafter by name, or an object with name, propose() and release()"
        )
    check_weights_fit("ssm", ssm, available_memory())
    try:
        loaded = load_model(ssm)
    except UsageError as error:
        if isinstance(ssm, str) and not os.path.exists(ssm):
            known = ", ".join([*DRAFTERS.names(), f"{_PRUNE}K"])
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
