"""A head on its own features, several steps deep, for all positions of a text at once (training-time test of EAGLE-3, Li et al. 2025)."""

import torch
from torch import Tensor

from flexspec.models.head import SpeculationHead


def rollout(head: SpeculationHead, token_ids: Tensor, states: Tensor, *, depth: int) -> Tensor:
    """The head's hidden states at every entry, when the last 0, 1, … features before it are its own.

    An entry at step d attends, as it would when drafting, to entries with the LLM's features up to d places before it, and to the
    entries of steps 2 … d that lead to it.

    Args:
        head: the head.
        token_ids: [batch, entries] the token of each entry: t_1, t_2, …
        states: [batch, entries, states * hidden] the LLM's hidden states one token before.
        depth: steps.

    Returns:
        [depth, batch, entries, hidden]; at step d (from 0) the first d entries of a row mean nothing.
    """
    layer = head.layer
    positions = torch.arange(token_ids.shape[1])[None].expand_as(token_ids)
    features = head.encoder(states)
    steps: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []
    for _ in range(depth):
        x = head.entry(token_ids, features)
        q, k, v = layer.project(x, positions)
        keys.append(k)
        values.append(v)
        hidden = layer.finish(x, _attend(q, keys, values, layer.scale))
        steps.append(hidden)
        features = hidden.roll(1, dims=1)
    return torch.stack(steps)


def _attend(q: Tensor, keys: list[Tensor], values: list[Tensor], scale: float) -> Tensor:
    """[batch, entries, heads, head_dim] attention of step len(keys): to the first step's entries, and to one entry of each other step."""
    groups = q.shape[2] // keys[0].shape[2]
    back = len(keys) - 1
    q = q.transpose(1, 2)  # [batch, heads, entries, head_dim]
    first_keys, first_values = (one.repeat_interleave(groups, dim=2).transpose(1, 2) for one in (keys[0], values[0]))
    if not back:
        attended = torch.nn.functional.scaled_dot_product_attention(q, first_keys, first_values, is_causal=True, scale=scale)
        return attended.transpose(1, 2)
    length = q.shape[2]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1 - back)
    scores = (q @ first_keys.transpose(2, 3) * scale).float().masked_fill(hidden, float("-inf"))
    own_values = []
    columns = [scores]
    for step in range(1, back + 1):
        shift = back - step
        key, value = (one[step].repeat_interleave(groups, dim=2).transpose(1, 2).roll(shift, dims=2) for one in (keys, values))
        columns.append((q * key).sum(dim=-1, keepdim=True).float() * scale)
        own_values.append(value)
    probs = torch.softmax(torch.cat(columns, dim=-1), dim=-1).to(q.dtype)
    attended = probs[..., :length] @ first_values
    for step, value in enumerate(own_values):
        attended = attended + probs[..., length + step : length + step + 1] * value
    return attended.transpose(1, 2)
