"""Rollouts of a head: what it computes when it drafts, at all places of a text at once."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from flexspec.models.head import HeadConfig, SpeculationHead
from flexspec.tuning.rollout import rollout

HIDDEN, ENTRIES, DEPTH, BATCH = 16, 9, 4, 2
TOLERANCE = 2e-5


def head() -> SpeculationHead:
    torch.manual_seed(3)
    shape = HeadConfig(
        hidden_size=HIDDEN,
        num_heads=4,
        num_kv_heads=2,
        head_dim=4,
        intermediate_size=24,
        rope_theta=100.0,
        norm_eps=1e-5,
        states=("low", "high"),
    )
    return SpeculationHead(shape, embedding=torch.randn(30, HIDDEN), lm_head=torch.randn(12, HIDDEN))


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(30, (BATCH, ENTRIES), generator=generator), torch.randn(BATCH, ENTRIES, 2 * HIDDEN, generator=generator)


def drafted(model: SpeculationHead, token_ids: Tensor, states: Tensor, entry: int, depth: int) -> Tensor:
    """[hidden] at `entry`, fed one after the other: the last `depth` entries with the hidden state of the one before as feature."""
    keys: list[Tensor] = []
    values: list[Tensor] = []
    hidden = torch.zeros(HIDDEN)
    for place in range(entry + 1):
        feature = model.encoder(states[place]) if place <= entry - depth else hidden
        x = model.entry(token_ids[place][None, None], feature[None, None])
        q, k, v = (one[0, 0] for one in model.layer.project(x, torch.tensor([[place]])))
        keys.append(k)
        values.append(v)
        groups = len(q) // len(k)
        attended = []
        for number, query in enumerate(q):
            own_keys = torch.stack([one[number // groups] for one in keys])
            own_values = torch.stack([one[number // groups] for one in values])
            attended.append(F.softmax(own_keys @ query * model.layer.scale, dim=0) @ own_values)
        hidden = model.layer.finish(x, torch.stack(attended)[None, None])[0, 0]
    return hidden


def test_step_0_is_the_head_itself() -> None:
    model, (token_ids, states) = head(), inputs()
    steps = rollout(model, token_ids, states, depth=1)
    positions = torch.arange(ENTRIES)[None].expand(BATCH, ENTRIES)
    features = torch.nn.functional.pad(states, (0, HIDDEN))
    assert (model.logits(steps[0]) - model(token_ids, positions, features)).abs().max() < TOLERANCE


def test_every_step_is_a_draft() -> None:
    model, (token_ids, states) = head(), inputs()
    with torch.no_grad():
        steps = rollout(model, token_ids, states, depth=DEPTH)
        assert steps.shape == (DEPTH, BATCH, ENTRIES, HIDDEN)
        for depth in range(DEPTH):
            for row in range(BATCH):
                for entry in range(depth, ENTRIES):
                    expected = drafted(model, token_ids[row], states[row], entry, depth)
                    assert (steps[depth, row, entry] - expected).abs().max() < TOLERANCE, (depth, row, entry)


def test_what_follows_a_text_does_not_matter() -> None:
    model, (token_ids, states) = head(), inputs()
    shorter = rollout(model, token_ids[:, :6], states[:, :6], depth=DEPTH)
    longer = rollout(model, token_ids, states, depth=DEPTH)
    for depth in range(DEPTH):
        assert (shorter[depth, :, depth:] - longer[depth, :, depth:6]).abs().max() < TOLERANCE


@pytest.mark.parametrize("step", range(DEPTH))
def test_gradients_flow_through_every_step(step: int) -> None:
    model, (token_ids, states) = head(), inputs()
    model.logits(rollout(model, token_ids, states, depth=DEPTH)[step, :, step:]).square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().max() > 0, name
        else:
            assert parameter.grad is None, name


@pytest.mark.parametrize("entries", [0, 1, 2])
def test_texts_shorter_than_the_rollout(entries: int) -> None:
    model, (token_ids, states) = head(), inputs()
    assert rollout(model, token_ids[:, :entries], states[:, :entries], depth=DEPTH).isfinite().all()
