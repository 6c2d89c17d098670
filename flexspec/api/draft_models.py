"""Draft models that were tuned to an LLM, among what users give as SSMs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from flexspec.models.draft_folder import DraftModel, is_draft_folder, load_draft
from flexspec.models.head import SpeculationHead, StateEncoder
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.shipped import shipped_folder


def load_tuned(ssms: Sequence[Any], llm: LoadedModel) -> dict[int, DraftModel]:
    """The tuned draft models among `ssms`, by place.

    Raises:
        UsageError: if one is damaged, does not fit the LLM, or does not come with flexspec as its name says.
    """
    return {place: tuned for place, ssm in enumerate(ssms) if (tuned := load_if_tuned(ssm, llm)) is not None}


def load_if_tuned(ssm: Any, llm: LoadedModel, *, whole: bool = False) -> DraftModel | None:
    """The tuned draft model that `ssm` names, as `load_draft` gives it; None if it names something else."""
    if is_draft_folder(ssm):
        return load_draft(Path(ssm).expanduser(), llm, name=str(ssm), whole=whole)
    if not isinstance(ssm, str):
        return None
    folder = shipped_folder(ssm)
    return None if folder is None else load_draft(folder, llm, name=ssm, whole=whole)


def hidden_states_for(tuned: Mapping[int, DraftModel]) -> tuple[str, ...]:
    """The LLM's submodules whose outputs the heads among them read, each once."""
    return tuple(dict.fromkeys(name for draft in tuned.values() for name in draft.states))


class HeadEncoding:
    """A head's encoder over its own columns of all hidden states that the LLM gives.

    Args:
        head: the head.
        states: names of all hidden states, side by side in that order.
        dtype: of the weights of its linear; the norms are in float32.
    """

    def __init__(self, head: SpeculationHead, states: Sequence[str], dtype: torch.dtype) -> None:
        config = head.head_config
        encoder: StateEncoder = head.encoder
        self._columns = [
            slice(states.index(name) * config.hidden_size, (states.index(name) + 1) * config.hidden_size) for name in config.states
        ]
        self._norms: list[nn.Module] = list(encoder.norms)
        self._fuse = encoder.fuse.weight.detach().to(dtype)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [n, all states] → float32 [n, feature]."""
        parts = [norm(states[:, columns]) for norm, columns in zip(self._norms, self._columns, strict=True)]
        return F.linear(torch.cat(parts, dim=-1).to(self._fuse.dtype), self._fuse).float()
