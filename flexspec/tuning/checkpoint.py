"""The state of a training, in one safetensors file: what a training that is killed goes on from."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from flexspec.errors import UsageError

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(kw_only=True)
class Progress:
    """How far a training is.

    Attributes:
        fingerprint: of what is trained, on what, and how; another training is another one.
        num_steps: steps there will be.
        step: steps done.
        tokens: predicted tokens they saw.
        curve: measurements made until now.
    """

    fingerprint: str
    num_steps: int
    step: int = 0
    tokens: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def save_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Write everything that the next step depends on; the file there was stays until the new one is complete."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainable(module).items():
        tensors[f"weight.{name}"] = parameter.detach()
        for moment in _MOMENTS:
            if moment in optimizer.state[parameter]:
                tensors[f"{moment}.{name}"] = optimizer.state[parameter][moment]
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"progress": json.dumps(vars(progress))})
    partial.replace(path)


def load_checkpoint(path: Path, module: nn.Module, optimizer: torch.optim.Optimizer, *, fingerprint: str) -> Progress:
    """Go back to where `save_checkpoint` was called.

    Raises:
        UsageError: if the file is damaged, or belongs to another training.
    """
    try:
        with safe_open(path, framework="pt") as file:
            progress = Progress(**json.loads(file.metadata()["progress"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{str(path)!r} is not a checkpoint ({error}): remove it to train from the start") from None
    if progress.fingerprint != fingerprint:
        raise UsageError(
            f"the checkpoint {str(path)!r} belongs to another model, other texts or settings: give the same as before, or another --out"
        )
    for name, parameter in trainable(module).items():
        with torch.no_grad():
            parameter.copy_(tensors[f"weight.{name}"])
        if progress.step:
            state = {moment: tensors[f"{moment}.{name}"] for moment in _MOMENTS}
            optimizer.state[parameter] = {"step": torch.tensor(float(progress.step)), **state}
    return progress
