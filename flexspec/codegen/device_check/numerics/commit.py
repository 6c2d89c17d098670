"""Compaction of accepted paths."""

from collections.abc import Iterator

import torch

from flexspec.codegen.cuda.kernels.kv_commit import kv_commit_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, mismatches
from flexspec.codegen.device_check.part import Context

_SLOTS = 400
_PATHS = ((3, [5, 6, 9, 30, 31]), (100, [100, 101, 104, 120]), (200, list(range(201, 260, 2))))
"""Where accepted nodes go to, and where they are: in the second, some stay; in the third, more than are moved at once."""


def commit_trials(context: Context) -> Iterator[Trial]:
    """One trial: bytes have no types."""
    yield Trial(kernel="kv_commit", case="several paths, padding", bound=0.0, error=lambda: _error(context))


def _error(context: Context) -> float:
    generator = torch.Generator().manual_seed(3)
    cache = torch.randn((2, 3, _SLOTS, 2, 80), generator=generator).bfloat16()
    sources, destinations = [], []
    for start, path in _PATHS:
        sources += [*path, -1]
        destinations += [*range(start, start + len(path)), -1]
    moves = torch.tensor([sources, destinations], dtype=torch.int32)
    found = cache.to(context.device, copy=True)
    on_device = moves.to(context.device)
    launcher("kv_commit", context.device)(found[0], found[1], on_device[0].contiguous(), on_device[1].contiguous())
    expected = cache.clone()
    kv_commit_reference(expected[0], expected[1], moves[0], moves[1])
    return mismatches(found, expected)
