"""Draft models that were tuned to an LLM, among what users give as SSMs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def state_columns(head: SpeculationHead, states: Sequence[str]) -> list[int]:
    """Where a head's hidden states are among all that the LLM gives, `states`, side by side in that order."""
    config = head.head_config
    return [states.index(name) * config.hidden_size + column for name in config.states for column in range(config.hidden_size)]
