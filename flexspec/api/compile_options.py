"""What users ask of `flexspec.compile`, checked, and filled in where they leave it open."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexspec.acceptance import AcceptanceTable, load_acceptance
from flexspec.api.devices import find_dtype
from flexspec.api.drafters import SHIPPED_DRAFTERS
from flexspec.api.ranks_strategy import searched_strategy
from flexspec.errors import UsageError, shown
from flexspec.models.loaded_model import LoadedModel
from flexspec.runtime.distributed.ranks import world_size
from flexspec.runtime.verifiers.legality import allows_adaptive, check_pair
from flexspec.runtime.verifiers.registry import AUTO
from flexspec.strategy import Strategy, load_strategy
from flexspec.tree_shape import PLAIN, Tree, TreeLimits, TreeSpec, parse_tree

_DEFAULT_MAX_LEN = 4096
_STATIC_TREE = TreeSpec(widths=(2, 2, 1, 1))
"""Where the verifier does not allow adaptive ones."""


def find_acceptance(statistics: Any) -> AcceptanceTable:
    """What is known of drafters' acceptance: nothing, or what a file holds, which need not exist yet.

    Raises:
        UsageError: if it can't be read, or written later.
    """
    if statistics is None:
        return AcceptanceTable()
    if not isinstance(statistics, str | os.PathLike) or not os.fspath(statistics) or "\0" in os.fspath(statistics):
        raise UsageError(f"statistics={statistics!r} is not allowed: give the path of a file, which need not exist yet")
    if os.path.lexists(statistics):
        return load_acceptance(statistics)
    folder = os.path.dirname(os.fspath(statistics)) or os.curdir
    if not os.path.isdir(folder):
        raise UsageError(
            f"statistics={os.fspath(statistics)!r} can't be written: there is no folder {folder!r}; make it, or give another file"
        )
    return AcceptanceTable()


def find_strategy(strategy: Any, model: Any, ssms: Any, *, dtype: Any, max_batch: int | None) -> Strategy | None:
    """The strategy that the user gave, or that a search finds for the ranks that were started; None for a single one.

    The arguments are those of `flexspec.compile`.

    Raises:
        UsageError: if it is none, can't be read, or nothing is found.
    """
    saved = _read_strategy(strategy)
    ranks = world_size()
    if saved is not None or ranks == 1:
        return saved
    return searched_strategy(model, ssms, ranks=ranks, dtype=None if dtype is None else _name_of(dtype), max_batch=max_batch)


def _read_strategy(strategy: Any) -> Strategy | None:
    if isinstance(strategy, Strategy):
        return strategy
    if strategy == "auto":
        return None
    if isinstance(strategy, str | os.PathLike):
        return load_strategy(os.fspath(strategy))
    raise UsageError(f"strategy={shown(strategy)} is not allowed: give 'auto', a Strategy, or the path of a saved one")


def choose_ssms(ssms: Any, saved: Strategy | None, model: Any) -> Sequence[Any]:
    """The drafters asked for: those given, else the strategy's, else those that ship for the model.

    Raises:
        UsageError: if they are no list.
    """
    if ssms is None and saved is not None:
        return saved.drafters
    if ssms is None:
        return SHIPPED_DRAFTERS.get(model, ()) if isinstance(model, str) else ()
    if isinstance(ssms, str | os.PathLike) or not isinstance(ssms, Sequence):
        example = str(ssms) if isinstance(ssms, str | os.PathLike) else "ngram"
        raise UsageError(f"ssms={shown(ssms)} is not allowed: give a list, for example [{example!r}]")
    return ssms


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse what is no tokenizer.

    Raises:
        UsageError: if it is none.
    """
    if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike | PreTrainedTokenizerBase):
        raise UsageError(f"tokenizer={shown(tokenizer)} is not allowed: give a transformers tokenizer, or the name or folder of one")


def make_plan(
    saved: Strategy | None,
    ssms: Sequence[Any],
    *,
    dtype: torch.dtype,
    tree: Any,
    verifier: str | None,
    max_batch: int | None,
    max_len: int | None,
) -> Strategy:
    """The strategy that is compiled: what was saved or the defaults, where the other arguments do not say otherwise.

    Raises:
        UsageError: if they are not allowed, by themselves or together.
    """
    shape = _tree(tree, saved, ssms, verifier)
    name = _name_of(dtype)
    plan = (saved or Strategy(dtype=name)).replaced(dtype=name, tree=shape, verifier=verifier, max_batch=max_batch, max_len=max_len)
    check_pair(plan.verifier, plan.tree)
    return plan


def _tree(tree: Any, saved: Strategy | None, ssms: Sequence[Any], verifier: str | None) -> Tree:
    if tree is not None:
        spec = parse_tree(tree)
        if spec.widths and not ssms and tree != "auto":
            raise UsageError(f"tree={tree!r} needs a drafter to fill it: give ssms, for example ['ngram'], or leave out tree")
    elif saved is not None and saved.tree.depth:
        spec = saved.tree
    else:
        spec = TreeLimits() if allows_adaptive(verifier or (saved.verifier if saved is not None else AUTO)) else _STATIC_TREE
    return spec if ssms else PLAIN


def choose_dtype(dtype: Any, saved: Strategy | None, model: Any, device: torch.device) -> torch.dtype:
    """Of the weights: what is given, else the strategy's, else a module's own, else bfloat16.

    Raises:
        UsageError: if it is unknown, or not for this device.
    """
    if dtype is None and saved is not None:
        dtype = saved.dtype
    if dtype is None:
        own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32) if isinstance(model, nn.Module) else None
        dtype = own or torch.bfloat16
    return find_dtype(_name_of(dtype), device)


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def choose_max_len(max_len: int | None, loaded: LoadedModel, *, compiled: int | None = None) -> int:
    """Most tokens of a request.

    Args:
        max_len: as asked for; None for all that the model allows, or 4096.
        loaded: the model.
        compiled: positions that it has once it is compiled: masks may allow fewer than its config says.

    Raises:
        UsageError: if it is more than the model's positions.
    """
    limit = loaded.max_positions
    if max_len is None:
        return min(one for one in (limit or _DEFAULT_MAX_LEN, compiled) if one is not None)
    if limit is not None and max_len > limit:
        why = f" without its {loaded.limited_by} rotary embedding changing, which is not supported" if loaded.limited_by else ""
        raise UsageError(f"max_len={max_len} is not allowed: model {loaded.name} has {limit} positions{why}; give at most that")
    return max_len
