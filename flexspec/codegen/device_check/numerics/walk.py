"""The walk through trees: by the likeliest tokens, and by keyed noise; and the noise itself."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.philox import keyed_noise_reference
from flexspec.codegen.cuda.kernels.tree_verify import tree_verify_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error, mismatches
from flexspec.codegen.device_check.part import Context

_DEPTH = 4
_NOISE_BOUND = 1e-12
"""Of logarithms in float64."""


def walk_trials(context: Context) -> Iterator[Trial]:
    """Every type of logits, greedy and with noise."""
    for temperatures in ([0.0, 0.0], [0.7, 0.0, 1.0]):
        kind = "noise" if any(temperatures) else "greedy"
        for dtype, odd in ((torch.float32, 0), (torch.bfloat16, 0), (torch.bfloat16, 3)):
            yield Trial(
                kernel="tree_verify",
                case=f"{kind}, {str(dtype).removeprefix('torch.')}{', odd vocabulary' * bool(odd)}",
                bound=0.0,
                error=lambda dtype=dtype, odd=odd, temperatures=temperatures: _error(context, dtype, odd, temperatures),  # type: ignore[misc]
            )
    yield Trial(kernel="keyed_noise", case="numbers and noise", bound=_NOISE_BOUND, error=lambda: _noise_error(context))


def _error(context: Context, dtype: torch.dtype, odd: int, temperatures: list[float]) -> float:
    vocab = context.sizes.vocab + odd
    rng = np.random.default_rng(4)
    generator = torch.Generator().manual_seed(4)
    num_requests = len(temperatures)
    # Each node has two children at most, so a tree of that depth has an accepted path and a wrong leaf at each of its nodes.
    nodes = 2 * _DEPTH - 1
    logits = (2 * torch.randn((num_requests * nodes, vocab), generator=generator)).to(dtype)
    tokens = torch.from_numpy(rng.integers(vocab, size=(num_requests, nodes)).astype(np.int32))
    parents = torch.tensor([[-1, *(parent for parent in range(0, nodes - 2, 2) for _ in range(2))]] * num_requests, dtype=torch.int32)
    keys: dict[str, Any] = {"vocab_limits": torch.full((num_requests,), vocab - 5, dtype=torch.int32)}
    if any(temperatures):
        keys["seeds"] = torch.from_numpy(rng.integers(2**63, size=num_requests).astype(np.uint64) * np.uint64(2))
        keys["completions"] = torch.arange(num_requests, dtype=torch.int32)
        keys["indices"] = torch.from_numpy(rng.integers(1, 5000, size=num_requests).astype(np.int32))
        keys["temperatures"] = torch.tensor(temperatures, dtype=torch.float64)
    starts = torch.arange(num_requests + 1, dtype=torch.int32) * nodes
    _follow(logits, tokens, parents, starts, keys)
    arguments = (logits, tokens.flatten(), parents.flatten(), starts)
    device = context.device
    found = launcher("tree_verify", device)(
        *(tensor.to(device) for tensor in arguments), **{name: value.to(device) for name, value in keys.items()}
    )
    expected = tree_verify_reference(*arguments, **keys)
    assert (expected.lengths == _DEPTH).all(), expected.lengths
    return sum(mismatches(one, other) for one, other in zip(found, expected, strict=True))


def _follow(logits: Tensor, tokens: Tensor, parents: Tensor, starts: Tensor, keys: dict[str, Any]) -> None:
    """Make the second child of each node on the path what the reference chooses there, and the first another token."""
    for depth in range(1, _DEPTH):
        walks = tree_verify_reference(logits, tokens.flatten(), parents.flatten(), starts, max_depth=depth, **keys)
        tokens[:, 2 * depth] = walks.bonus
        tokens[:, 2 * depth - 1] = (walks.bonus + 1) % int(keys["vocab_limits"][0])


def _noise_error(context: Context) -> float:
    seeds = torch.tensor([0, -1, 2**62 + 12345])
    completions, indices = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([0, 3, 1], [0, 77, 2**30]))
    streams = torch.tensor([0, 1, 5])
    arguments = (seeds, completions, indices, streams)
    first, count = 3, context.sizes.vocab
    raw, noise = launcher("keyed_noise", context.device)(*(one.to(context.device) for one in arguments), first=first, count=count)
    expected_raw, expected_noise = keyed_noise_reference(*arguments, first=first, count=count)
    return max(mismatches(raw, expected_raw), largest_error(noise, expected_noise))
