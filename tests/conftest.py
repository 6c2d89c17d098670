"""Fixtures that every test file may use."""

import os
from collections.abc import Iterator

# Triton's kernels run in its interpreter, on CPU tensors; read where a kernel is defined, so before anything else is imported.
os.environ["TRITON_INTERPRET"] = "1"

import pytest
import torch

from flexspec.runtime.adaptation.adaptation import Adaptation
from flexspec.runtime.adaptation.step_costs import StepCosts


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    # Tiny models run fastest on one thread, and the suite shares the machine.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def time_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adaptive trees that draft and verify all they can, always the same: tiny models take as long to draft as to verify."""
    monkeypatch.setattr(Adaptation, "tokens_per_s", property(lambda self: 0.0))
    monkeypatch.setattr("flexspec.runtime.step_loop.measure_step_costs", lambda model, most: StepCosts({1: 0.001, 2: 0.001}))
