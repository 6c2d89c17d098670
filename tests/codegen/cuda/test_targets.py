"""Which target's kernels a GPU runs."""

from types import SimpleNamespace

import pytest
import torch

from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import device_target, find_target
from flexspec.errors import UsageError

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(("capability", "name"), [((8, 0), "sm_80"), ((8, 9), "sm_80"), ((9, 0), "sm_90"), ((10, 3), "sm_100")])
def test_nvidias_go_by_compute_capability(capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert device_target(CUDA).name == name


def test_amds_go_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-"))
    assert device_target(CUDA).name == "gfx942"


@pytest.mark.parametrize("capability", [(7, 5), (11, 0), (12, 0)])
def test_others_are_named(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Some GPU")
    major, minor = capability
    with pytest.raises(UncoveredCase, match=f"no kernels for Some GPU, a GPU of compute capability {major}.{minor}: there are some for"):
        device_target(CUDA)


def test_names() -> None:
    assert device_target(torch.device("cpu")).name == "sm_90", "what Triton's interpreter stands for"
    with pytest.raises(UsageError, match="no kernels for GPU 'sm_70': there are some for sm_80, sm_90, sm_100, gfx942"):
        find_target("sm_70")
