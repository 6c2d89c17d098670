"""Launches against the list of variants: each has the types, constants, alignments and options of one, and each variant is launched.

Triton's own binder says what a launch would be specialised for; nothing is compiled or run.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget as TritonTarget
from triton.compiler.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from flexspec.codegen.cuda.kernels import (
    combine_splits,
    draft_level,
    draft_top,
    kv_commit,
    philox,
    probabilities,
    residual,
    rope_write,
    tree_attention,
    tree_verify,
    truncate,
)
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget
from flexspec.codegen.cuda.variants import kernel_variants

MODULES = (
    *(combine_splits, draft_level, draft_top, kv_commit, philox, probabilities, residual, rope_write, tree_attention),
    *(tree_verify, truncate),
)
BRAIN, SINGLE, DOUBLE = torch.bfloat16, torch.float32, torch.float64
FLOATS = (BRAIN, torch.float16, SINGLE)
COUNTS = (1, 16, 17)
"""1 becomes a constant and 16 a multiple of 16, unless a kernel says otherwise."""

# What a launch is specialised for: function, types, constants, aligned arguments, options.
Specialisation = tuple[Any, ...]


class Recorder:
    """Stands for a kernel; takes down what its launches are specialised for."""

    def __init__(self, kernel: Any, target: GpuTarget, launched: set[Specialisation]) -> None:
        self._kernel = kernel
        function = JITFunction(kernel.fn, **kernel.kwargs)
        self._backend = make_backend(TritonTarget(target.backend, target.arch, target.warp_size))
        self._bind = create_function_from_signature(function.signature, function.params, self._backend)
        self._launched = launched

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch

    def _launch(self, *arguments: Any, **named: Any) -> None:
        bound, found, named_options = self._bind(*arguments, **named)
        kinds = {name: kind for name, (kind, _) in zip(bound, found, strict=True)}
        constants = {name: bound[name] for name, kind in kinds.items() if kind == "constexpr"}
        aligned = frozenset(name for name, (_, hint) in zip(bound, found, strict=True) if "D" in str(hint or ""))
        options = self._backend.parse_options(named_options)
        assert options.enable_fp_fusion
        self._launched.add((self._kernel, *_key(kinds, constants, aligned, options.num_warps, options.num_stages)))


def _key(kinds: Any, constants: Any, aligned: frozenset[str], num_warps: int, num_stages: int) -> Specialisation:
    return tuple(kinds.items()), tuple(sorted(constants.items())), tuple(sorted(aligned)), num_warps, num_stages


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_launches_are_variants_and_variants_are_launched(target: GpuTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: set[Specialisation] = set()
    listed = {
        (variant.function, *_key(variant.signature, variant.constants, variant.divisible, variant.num_warps, variant.num_stages)): variant
        for variant in kernel_variants(target)
    }
    for module in MODULES:
        for name, value in list(vars(module).items()):
            if any(value is variant.function for variant in listed.values()):
                monkeypatch.setattr(module, name, Recorder(value, target, launched))
        if hasattr(module, "device_target"):
            monkeypatch.setattr(module, "device_target", lambda device: target)
    for launch in LAUNCHES:
        launch(target)
    assert not [found[1:] for found in launched - set(listed)]
    assert not [f"{variant.kernel}: {variant.case}" for key, variant in listed.items() if key not in launched]


def integers(*size: int) -> Tensor:
    """At no multiple of 16 bytes, as parts of a packed buffer may be."""
    return torch.zeros(math.prod(size) + 1, dtype=torch.int32)[1:].view(size)


def doubles(count: int) -> Tensor:
    return torch.zeros(count + 1, dtype=DOUBLE)[1:]


def caches(dtype: torch.dtype, target: GpuTarget) -> Iterator[tuple[torch.dtype, dict[str, Tensor]]]:
    """Types of a cache, and a layer's scales."""
    yield dtype, {}
    if target.cache_float8 is not None and dtype != SINGLE:
        scales = torch.ones(3)[1:2]
        yield target.cache_float8, {"k_scales": scales, "v_scales": scales}


def launch_attention(target: GpuTarget) -> None:
    # As a model's configuration and weights may have them.
    general = {"softcap": 30, "window": 2**40, "slopes": torch.ones(4), "sinks": torch.ones(4, dtype=BRAIN), "scale": 1}
    for dtype, dim, tokens in itertools.product(FLOATS, (16, 80, 256), (1, 16, 100)):
        for cache_dtype, scales in caches(dtype, target):
            cache = torch.zeros(32, 1, dim, dtype=cache_dtype)
            for words, options in ((0, {}), (2, {}), (0, general)):
                tensors = (integers(1, 4), *(integers(tokens) for _ in range(3)), integers(1), integers(tokens, words), integers(1, 2))
                tree_attention.tree_attention(
                    torch.zeros(tokens, 4, dim, dtype=dtype),
                    *(cache, cache, *tensors),
                    **{"block_size": 16, "block_tokens": tokens, "kv_heads": 1, "scale": 0.5, "num_splits": 1 + words, **options, **scales},
                )


def launch_rope_write(target: GpuTarget) -> None:
    forms = ((128, 128, False), (16, None, False), (256, 64, False), (80, 20, False), (128, 128, True), (80, 20, True))
    for dtype, (dim, rotary, interleaved), count in itertools.product(FLOATS, forms, COUNTS):
        fused = torch.zeros(count, 3 * dim, dtype=dtype)
        q, k, v = (part.unflatten(-1, (1, dim)) for part in fused.split(dim, dim=-1))
        turns = None if rotary is None else torch.zeros(count, rotary)
        for cache_dtype, scales in caches(dtype, target):
            cache = torch.zeros(32, 1, dim, dtype=cache_dtype)
            if not scales or rotary != 20:
                arguments = (q, k, v, turns, turns, cache, cache, integers(count), integers(count), integers(1, count))
                rope_write.rope_write(*arguments, block_size=16, interleaved=interleaved, **scales)


def launch_rest(target: GpuTarget) -> None:
    for count in COUNTS:
        for dtype in FLOATS:
            combine_splits.combine_splits(torch.zeros(2, count, 1, 80), torch.zeros(2, count, 1), integers(count), dtype)
            cache = torch.zeros(1, 16 * count, count, 16, dtype=dtype)
            kv_commit.kv_commit(cache, cache, integers(count), integers(count))
        seeds = torch.zeros(count + 1, dtype=torch.int64)[1:]
        philox.keyed_noise(seeds, integers(count), integers(count), seeds, first=count, count=count)
        p = torch.zeros(count, 32, dtype=DOUBLE)
        residual.residual(p, p, integers(count, count), integers(count, count), doubles(count * (count + 1)).view(count, -1))


def launch_sampling(target: GpuTarget) -> None:
    for dtype, vocab, count in itertools.product((SINGLE, BRAIN), (48, 50), COUNTS):
        logits = torch.zeros(count, vocab, dtype=dtype)
        seeds = torch.zeros(count, dtype=torch.uint64)
        keys = {"seeds": seeds, "completions": integers(count), "indices": integers(count), "temperatures": doubles(count)}
        for noise in ({}, keys):
            trees = (integers(count), integers(count), integers(count + 1))
            tree_verify.tree_verify(logits, *trees, vocab_limits=integers(count), max_depth=count, **noise)
        if dtype == SINGLE:
            limits = {"vocab_limits": integers(count), "top_ks": integers(count), "top_ps": doubles(count), "min_ps": doubles(count)}
            cuts = truncate.truncate(logits, temperatures=doubles(count), **limits)
            probabilities.probabilities(logits, temperatures=doubles(count), vocab_limits=integers(count), cuts=cuts)


def launch_drafting(target: GpuTarget) -> None:
    for dtype, vocab, count in itertools.product((SINGLE, BRAIN), (48, 50), COUNTS):
        noise = draft_top.SharedNoise(torch.zeros(count, dtype=torch.uint64), integers(count), doubles(count))
        rows = (torch.zeros(count, vocab, dtype=dtype), integers(count), integers(count), integers(count), doubles(count))
        for shared, token_ids in ((None, None), (noise, None), (noise, integers(vocab))):
            draft_top.draft_top(*rows, k=min(count, 8), noise=shared, token_ids=token_ids)
    for width, k in ((1, 1), (16, 8), (128, 8)):
        level = draft_level.root_level(torch.zeros(width, dtype=torch.int64), integers(width), 1)
        top = draft_top.TopTokens(integers(width, k), torch.zeros(width, k))
        draft_level.draft_level(level, top, integers(1), integers(1, 1, 2), 0, width=width)


LAUNCHES: tuple[Callable[[GpuTarget], None], ...] = (launch_attention, launch_rope_write, launch_rest, launch_sampling, launch_drafting)
