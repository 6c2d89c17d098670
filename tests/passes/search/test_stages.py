"""The cut of a pipeline against all cuts."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from flexspec.passes.search.stages import StageProblem, split_layers


def every_cut(problem: StageProblem) -> list[tuple[float, float]]:
    """Sum of all layers and the longest stage, of every cut that fits."""
    found = []
    for marks in combinations(range(1, problem.layers), problem.stages - 1):
        ends = [0, *marks, problem.layers]
        rows = [problem.seconds[stage % len(problem.seconds)] for stage in range(problem.stages)]
        seconds = [row[start:end].sum() for row, start, end in zip(rows, ends, ends[1:], strict=False)]
        sizes = [problem.num_bytes[start:end].sum() for start, end in pairwise(ends)]
        if all(size <= room for size, room in zip(sizes, problem.rooms, strict=True)):
            found.append((sum(seconds), max(s + f for s, f in zip(seconds, problem.fixed, strict=True))))
    return found


@pytest.mark.parametrize("alike", [True, False])
def test_the_cut_is_the_best_of_all(alike: bool) -> None:
    rng = np.random.default_rng(alike)
    impossible = 0
    for _ in range(120):
        stages, layers = int(rng.integers(1, 5)), int(rng.integers(1, 9))
        problem = StageProblem(
            seconds=rng.uniform(0.1, 1.0, (1 if alike else stages, layers)),
            num_bytes=rng.uniform(0.1, 1.0, layers),
            fixed=rng.uniform(0, 1.0, stages),
            rooms=rng.uniform(0.3, 4.0, stages),
        )
        between, micro_batches, other = float(rng.uniform(0, 1)), int(rng.integers(1, 6)), float(rng.uniform(0, 1))
        split = split_layers(problem, between=between, micro_batches=micro_batches, other=other)
        cycles = [max(total + between, micro_batches * max(longest, other)) for total, longest in every_cut(problem)]
        impossible += not cycles
        assert (split is None) == (not cycles)
        if split is not None:
            assert max(split.total + between, micro_batches * max(split.longest, other)) == pytest.approx(min(cycles), rel=1e-9)
            for limit in (min(cycles) * 0.9, min(cycles) * 1.001, min(cycles) * 1.5):
                other_split = split_layers(problem, between=between, micro_batches=micro_batches, other=other, limit=limit)
                assert other_split is not None
                cycle = max(other_split.total + between, micro_batches * max(other_split.longest, other))
                assert cycle > limit if limit < min(cycles) else cycle == pytest.approx(min(cycles), rel=1e-9)
            assert sum(split.layers) == layers and len(split.layers) == stages and min(split.layers) >= 1
    assert 10 < impossible < 110


def test_a_deep_pipeline_is_cut_evenly() -> None:
    problem = StageProblem(seconds=np.ones((1, 126)), num_bytes=np.ones(126), fixed=np.zeros(16), rooms=np.full(16, 9.0))
    split = split_layers(problem)
    assert split is not None and max(split.layers) == 8 and split.longest == pytest.approx(8.0)
