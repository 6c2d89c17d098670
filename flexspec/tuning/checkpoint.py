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
from flexspec.models.whole_file import write_whole
from flexspec.tuning.optimizer import MatrixOptimizer

_ADAMW, _MUON = {"step", "exp_avg", "exp_avg_sq"}, {"momentum_buffer"}
_OPTIMIZER_STATE = sorted(_ADAMW | _MUON)


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


def save_checkpoint(path: Path, module: nn.Module, optimizer: MatrixOptimizer, progress: Progress) -> None:
    """Write everything that the next step depends on; the file there was stays until the new one is complete."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in trainable(module).items():
        tensors[f"weight.{name}"] = parameter.detach()
        tensors |= {f"{part}.{name}": value for part, value in optimizer.state(parameter).items() if part in _OPTIMIZER_STATE}
    write_whole(path, lambda partial: save_file(tensors, partial, metadata={"progress": json.dumps(vars(progress))}))


def load_checkpoint(path: Path, module: nn.Module, optimizer: MatrixOptimizer, *, fingerprint: str) -> Progress:
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
    parameters = trainable(module)
    states = {name: {part: tensors[key] for part in _OPTIMIZER_STATE if (key := f"{part}.{name}") in tensors} for name in parameters}
    is_whole = all(_has_shape(tensors.get(f"weight.{name}"), value) for name, value in parameters.items())
    # A part of the model that no text has used yet has none.
    if not is_whole or any(state and set(state) != (_MUON if parameters[name].dim() == 2 else _ADAMW) for name, state in states.items()):
        raise UsageError(f"the checkpoint {str(path)!r} lacks weights or what the optimizer remembers: remove it to train from the start")
    for name, parameter in parameters.items():
        with torch.no_grad():
            parameter.copy_(tensors[f"weight.{name}"])
        state = optimizer.state(parameter)
        state.clear()
        state |= states[name]
    return progress


def _has_shape(stored: Tensor | None, parameter: nn.Parameter) -> bool:
    return stored is not None and stored.shape == parameter.shape
