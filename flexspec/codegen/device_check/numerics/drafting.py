"""Drafting on the device: the best tokens at each node, and the levels that are formed of them."""

from collections.abc import Iterator

import torch

from flexspec.codegen.cuda.kernels.draft_level import Level, draft_level_reference, root_level
from flexspec.codegen.cuda.kernels.draft_top import SharedNoise, TopTokens, draft_top_reference
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.numerics.trial import Trial, largest_error, mismatches
from flexspec.codegen.device_check.part import Context

_CHILDREN = 8
_BOUND = 2e-5
"""Of logarithms of shares, in float32 without noise."""


def drafting_trials(context: Context) -> Iterator[Trial]:
    """The best tokens by type, with and without noise and a map; levels that are cut to a budget."""
    for dtype, is_noisy, has_map in (
        (torch.float32, False, False),
        (torch.bfloat16, False, True),
        (torch.float32, True, False),
        (torch.bfloat16, True, True),
    ):
        case = f"{str(dtype).removeprefix('torch.')}{', noise' * is_noisy}{', trimmed' * has_map}"
        yield Trial(
            kernel="draft_top",
            case=case,
            bound=_BOUND,
            error=lambda dtype=dtype, is_noisy=is_noisy, has_map=has_map: _top_error(context, dtype, is_noisy, has_map),  # type: ignore[misc]
        )
    yield Trial(kernel="draft_level", case="three levels, budgets", bound=0.0, error=lambda: _level_error(context))


def _top_error(context: Context, dtype: torch.dtype, is_noisy: bool, has_map: bool) -> float:
    generator = torch.Generator().manual_seed(6)
    columns = context.sizes.vocab
    logits = (2 * torch.randn((5, columns), generator=generator)).to(dtype)
    slots, positions = (torch.tensor(numbers, dtype=torch.int32) for numbers in ([4, 9, -1, 3, 7], [4, 9, 0, 2, 6]))
    rows = torch.tensor([0, 0, 0, 1, 1], dtype=torch.int32)
    temperatures, alphas = torch.tensor([0.8, 0.0], dtype=torch.float64), torch.tensor([1.0, 0.7], dtype=torch.float64)
    noise = SharedNoise(torch.tensor([12345, -7]), torch.tensor([0, 2], dtype=torch.int32), alphas) if is_noisy else None
    token_ids = torch.arange(columns, dtype=torch.int32) * 2 + 1 if has_map else None
    arguments = (logits, slots, positions, rows, temperatures)
    device = context.device
    found = launcher("draft_top", device)(
        *(one.to(device) for one in arguments),
        k=_CHILDREN,
        noise=None if noise is None else SharedNoise(*(one.to(device) for one in noise)),
        token_ids=None if token_ids is None else token_ids.to(device),
    )
    expected = draft_top_reference(*arguments, k=_CHILDREN, noise=noise, token_ids=token_ids)
    return mismatches(found.ids, expected.ids) + largest_error(found.log_probs, expected.log_probs)


def _level_error(context: Context) -> float:
    generator = torch.Generator().manual_seed(7)
    lengths, roots = torch.tensor([10, 0, 50], dtype=torch.int32), torch.tensor([5, 0, 6])
    limits = torch.tensor([[[3, 99], [8, 6], [2, 9]], [[1, 1], [1, 1], [1, 1]], [[8, 8], [1, 3], [0, 0]]], dtype=torch.int32)
    device = context.device
    run = launcher("draft_level", device)
    expected = root_level(roots, lengths, 1)
    error = 0.0
    for number, width in enumerate((8, 12, 16)):
        # Whole numbers of halves, so that ties occur and sums are exact.
        scores = torch.randint(-20, 0, (len(expected.slots), _CHILDREN), generator=generator).float() / 2
        ids = torch.randint(100, scores.shape, generator=generator, dtype=torch.int32)
        ids[expected.slots < 0] = -1
        top = TopTokens(ids, scores)
        found = run(
            Level(*(one.to(device) for one in expected)),
            TopTokens(*(one.to(device) for one in top)),
            lengths.to(device),
            limits.to(device),
            number,
            width=width,
        )
        expected = draft_level_reference(expected, top, lengths, limits, number, width=width)
        error += sum(mismatches(one, other) for one, other in zip(found, expected, strict=True))
    return error
