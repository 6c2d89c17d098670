"""Draft models that were tuned to an LLM, among what users give as SSMs."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flexspec.models.draft_folder import DraftModel, is_draft_folder, load_draft
from flexspec.models.head import SpeculationHead
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.shipped import shipped_folder


def load_tuned(ssms: Sequence[Any], llm: LoadedModel) -> dict[int, DraftModel]:
    """The tuned draft models among `ssms`, by place.

    Raises:
        UsageError: if one is damaged, or does not fit the LLM.
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
    """A head's encoder, applied to its own ones of all hidden states that the LLM gives.

    Args:
        head: the head.
        states: names of all hidden states, side by side in that order.
        dtype: of the weights of its linear; the norms are in float32.
    """

    def __init__(self, head: SpeculationHead, states: Sequence[str], dtype: torch.dtype) -> None:
        config = head.head_config
        first = torch.tensor([states.index(name) * config.hidden_size for name in config.states])
        self._columns = (first[:, None] + torch.arange(config.hidden_size)).flatten()
        self._encoder = copy.deepcopy(head.encoder)
        self._encoder.fuse.to(dtype)

    def __call__(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [n, all states] → float32 [n, feature]."""
        feature: torch.Tensor = self._encoder(states[:, self._columns])
        return feature.float()
