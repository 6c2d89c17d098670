"""Lower bounds of many cases side by side, as the search goes through them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexspec.passes.search.case import Case, DraftCosts, StageCosts, lower_bounds
from flexspec.passes.search.space import DraftOption, Shape
from flexspec.passes.search.stages import Floats, Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """Cases with the same drafters, and so the same trees.

    Attributes:
        option: their drafters.
        shapes: numbers of everything, of each.
        members: cases that each stands for, which differ in the division alone.
        trees: number of them.
        least: [cases] seconds a token that no tree which may fit is better than; infinite where none may.
        unfit: [cases] the same of trees that can't fit; infinite where all may.
        fitting: [cases] trees that may fit.
        case: makes the case at a place.
    """

    option: DraftOption
    shapes: Sequence[Shape]
    members: int
    trees: int
    least: Floats
    unfit: Floats
    fitting: Ints
    case: Callable[[int], Case]


def columns_of(case: Case) -> Columns:
    """A case by itself."""
    bounds, fits = case.bounds()
    return Columns(
        option=case.option,
        shapes=[case.shape],
        members=case.number,
        trees=len(bounds),
        case=lambda _: case,
        **_parts(bounds[None, :], fits[None, :], np.zeros(1, dtype=np.intp)),
    )


def side_by_side(
    shapes: Sequence[Shape],
    option: DraftOption,
    stages: StageCosts,
    drafting: DraftCosts,
    *,
    pairs: Ints,
    places: Ints,
    members: int,
    case: Callable[[int], Case],
) -> Columns:
    """Cases that share costs.

    Args:
        shapes: of the cases.
        option: their drafters.
        stages: costs of the model for several micro-batches.
        drafting: costs of drafting for the same.
        pairs: [micro-batches] how many are under way at once.
        places: [cases] which of them is each one's.
        members: cases that each stands for.
        case: makes the case at a place.
    """
    bounds, fits = lower_bounds(stages, drafting, pairs[:, None])
    return Columns(option=option, shapes=shapes, members=members, trees=len(drafting.trees), case=case, **_parts(bounds, fits, places))


def _parts(bounds: Floats, fits: NDArray[np.bool_], places: Ints) -> dict[str, Any]:
    return {
        "least": np.where(fits, bounds, np.inf).min(axis=1)[places],
        "unfit": np.where(fits, np.inf, bounds).min(axis=1)[places],
        "fitting": np.count_nonzero(fits, axis=1)[places],
    }
