"""Checkpoints: all that the next step depends on, and nothing that is half written."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from flexspec.errors import UsageError
from flexspec.tuning.checkpoint import Progress, load_checkpoint, save_checkpoint
from flexspec.tuning.optimizer import MatrixOptimizer


def model(seed: int) -> tuple[nn.Sequential, MatrixOptimizer]:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    module[2].requires_grad_(False)
    return module, MatrixOptimizer(one for one in module.parameters() if one.requires_grad)


def step(module: nn.Sequential, optimizer: MatrixOptimizer, *, both: bool) -> None:
    torch.manual_seed(9)
    x = torch.randn(4, 3)
    (module(x) if both else module[0](x)).square().sum().backward()
    optimizer.step(0.1)


def saved(path: Path) -> tuple[nn.Sequential, MatrixOptimizer]:
    """After two steps, in the first of which a part of the model had no use."""
    module, optimizer = model(0)
    step(module, optimizer, both=False)
    step(module, optimizer, both=True)
    save_checkpoint(path, module, optimizer, Progress(fingerprint="f", num_steps=9, step=2, tokens=8, curve=[{"loss": 0.1 + 0.2}]))
    return module, optimizer


def test_it_goes_on_bit_by_bit(tmp_path: Path) -> None:
    path = tmp_path / "draft.checkpoint"
    module, optimizer = saved(path)
    other, other_optimizer = model(0)
    step(other, other_optimizer, both=True)
    progress = load_checkpoint(path, other, other_optimizer, fingerprint="f")
    assert progress == Progress(fingerprint="f", num_steps=9, step=2, tokens=8, curve=[{"loss": 0.1 + 0.2}])
    for both in (True, False, True):
        for one, its_optimizer in ((module, optimizer), (other, other_optimizer)):
            step(one, its_optimizer, both=both)
    assert all(torch.equal(one, two) for one, two in zip(module.parameters(), other.parameters(), strict=True))
    assert not any(".2." in name for name in load_file(path)), "what is not trained is not kept"


def test_a_part_that_was_never_used(tmp_path: Path) -> None:
    path = tmp_path / "draft.checkpoint"
    module, optimizer = model(0)
    step(module, optimizer, both=False)
    save_checkpoint(path, module, optimizer, Progress(fingerprint="f", num_steps=9, step=1))
    other, other_optimizer = model(0)
    load_checkpoint(path, other, other_optimizer, fingerprint="f")
    for one, its_optimizer in ((module, optimizer), (other, other_optimizer)):
        step(one, its_optimizer, both=True)
    assert all(torch.equal(one, two) for one, two in zip(module.parameters(), other.parameters(), strict=True))


def test_another_fingerprint(tmp_path: Path) -> None:
    saved(tmp_path / "c")
    with pytest.raises(UsageError, match="belongs to another model, other texts or settings"):
        load_checkpoint(tmp_path / "c", *model(0), fingerprint="g")


@pytest.mark.parametrize("damage", ["cut", "empty", "no progress", "lacks", "shape", "forgets"])
def test_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "draft.checkpoint"
    saved(path)
    tensors = load_file(path)
    with open(path, "rb") as file:
        raw = file.read()
    metadata = {"progress": '{"fingerprint": "f", "num_steps": 9, "step": 2}'}
    match damage:
        case "cut":
            path.write_bytes(raw[:-1])
        case "empty":
            path.write_bytes(b"")
        case "no progress":
            save_file(tensors, path)
        case "lacks":
            save_file({name: value for name, value in tensors.items() if name != "weight.0.bias"}, path, metadata=metadata)
        case "forgets":
            save_file({name: value for name, value in tensors.items() if not name.startswith("step.")}, path, metadata=metadata)
        case "shape":
            save_file(tensors | {"weight.0.bias": torch.zeros(2)}, path, metadata=metadata)
    with pytest.raises(
        UsageError, match=r"draft\.checkpoint' (is not a checkpoint \(.*\)|lacks weights or what .*): remove it to train from the start"
    ):
        load_checkpoint(path, *model(0), fingerprint="f")


def test_the_old_one_stays_until_the_new_one_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "draft.checkpoint"
    module, optimizer = saved(path)
    before = path.read_bytes()

    def full(tensors: object, path: Path, metadata: object) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flexspec.tuning.checkpoint.save_file", full)
    with pytest.raises(UsageError, match=r"can't be written .*No space left"):
        save_checkpoint(path, module, optimizer, Progress(fingerprint="f", num_steps=9))
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1
