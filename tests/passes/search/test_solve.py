"""The search against brute force: every strategy of small random problems, infeasible ones included."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from flexspec.passes.search.case import Case, DraftCosts, StageCosts
from flexspec.passes.search.solve import BOUND, LATENCY_BOUND, MEMORY, solve
from flexspec.passes.search.space import LATENCY, THROUGHPUT, DraftOption, Shape, Workload, degrees, draft_options, shapes
from flexspec.passes.search.trees import NO_TREE, GrownTree

PROBLEMS = 520


def random_trees(rng: np.random.Generator, drafters: tuple[str, ...]) -> tuple[GrownTree, ...]:
    if not drafters:
        return (NO_TREE,)
    count = int(rng.integers(1, 4))
    return tuple(
        GrownTree(size=int(rng.integers(1, 8)), expected=float(rng.uniform(1, 4)), levels={drafters[0]: (1,)}, branch=1)
        for _ in range(count)
    )


def random_stage_costs(rng: np.random.Generator, kinds: np.ndarray, pp: int, rows: int, memory: float) -> StageCosts:
    number = int(kinds.max()) + 1
    return StageCosts(
        stages=pp,
        kinds=kinds,
        kind_seconds=rng.uniform(0.1, 2.0, (rows, 8, number)),
        first=rng.uniform(0, 2.0, 8),
        last=rng.uniform(0, 2.0, 8),
        between=rng.uniform(0, 0.5, 8) * (pp > 1),
        kind_bytes=rng.uniform(0.1, 1.0, (8, number)),
        first_bytes=rng.uniform(0, 1.0, 8),
        last_bytes=rng.uniform(0, 1.0, 8),
        room=np.full(8, memory) * rng.uniform(0.8, 1.0, 8),
    )


def random_problem(seed: int) -> tuple[list[Case], Workload]:
    rng = np.random.default_rng(seed)
    devices, layers = int(rng.integers(1, 6)), int(rng.integers(1, 7))
    kinds = rng.integers(0, int(rng.integers(1, 4)), layers)
    kinds[-1] = kinds.max()
    workload = Workload(objective=[LATENCY, THROUGHPUT][seed % 2], batch=int(rng.integers(1, 5)))
    drafters = ("model", "lookup")[: int(rng.integers(0, 3))]
    memory = float(rng.choice([0.3, 1.0, 2.0, 4.0, 20.0]))
    cases = []
    for option in draft_options(drafters, ("model",), devices):
        for tp in degrees(devices, devices):
            for pp in range(1, devices // tp + 1):
                for shape in shapes(workload, devices, tp=tp, pp=pp, own_devices=len(option.own_devices)):
                    trees = random_trees(rng, option.drafters)
                    own = bool(option.own_devices)
                    drafting = DraftCosts(
                        trees=trees,
                        host=rng.uniform(0, 0.3, len(trees)),
                        beside=rng.uniform(0, 2.0, len(trees)) * bool(trees[0].size),
                        apart=rng.uniform(0, 2.0, len(trees)) * own,
                        beside_bytes=float(rng.uniform(0, 0.5)) * bool(trees[0].size),
                        apart_bytes=float(rng.uniform(0, 2.0)) * own,
                    )
                    ways = 1 + int(rng.integers(0, 2)) * (devices < 4)
                    rows = pp if rng.random() < 0.3 else 1
                    for way in range(ways):
                        stages = random_stage_costs(rng, kinds, pp, rows, memory)
                        cases.append(Case(shape=shape, option=option, division=way, stages=stages, drafting=drafting))
    return cases, workload


def families(cases: list[Case]) -> list[Case]:
    """The same cases, those of equal shape and drafters as members of a family whose costs are the least of theirs."""
    groups: dict[tuple[Shape, DraftOption], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.shape, case.option), []).append(case)
    return [group[0] if len(group) == 1 else family(group) for group in groups.values()]


def family(members: list[Case]) -> Case:
    names = ("kind_seconds", "first", "last", "between", "kind_bytes", "first_bytes", "last_bytes")
    costs = [case.stages for case in members]
    least = {name: np.minimum.reduce([getattr(one, name) for one in costs]) for name in names}
    stages = replace(costs[0], **least, room=np.maximum.reduce([one.room for one in costs]))
    return replace(members[0], stages=stages, members=(len(members), lambda: members))


def cuts(layers: int, stages: int) -> Iterator[list[range]]:
    for marks in combinations(range(1, layers), stages - 1):
        ends = (0, *marks, layers)
        yield [range(start, end) for start, end in pairwise(ends)]


def every_strategy(case: Case) -> Iterator[float]:
    """Seconds a token of each one that fits: equations 6, 8 and 11 spelled out."""
    costs, drafting, shape = case.stages, case.drafting, case.shape
    kinds, rows, sizes = costs.kinds.tolist(), costs.kind_seconds.tolist(), costs.kind_bytes.tolist()
    for index, tree in enumerate(drafting.trees):
        n = tree.size
        room, first_bytes, last_bytes = (float(values[n]) for values in (costs.room, costs.first_bytes, costs.last_bytes))
        first, last, between = (float(values[n]) for values in (costs.first, costs.last, costs.between))
        host, beside, apart = (float(values[index]) for values in (drafting.host, drafting.beside, drafting.apart))
        for cut in cuts(len(kinds), shape.pp):
            stage_seconds, fits = [], drafting.apart_bytes <= room
            for stage, layers in enumerate(cut):
                row = rows[stage if len(rows) > 1 else 0][n]
                seconds = sum(row[kinds[layer]] for layer in layers)
                memory = sum(sizes[n][kinds[layer]] for layer in layers)
                if stage == 0:
                    seconds, memory = seconds + first, memory + first_bytes
                if stage == shape.pp - 1:
                    seconds, memory = seconds + last, memory + last_bytes + drafting.beside_bytes
                stage_seconds.append(seconds)
                fits = fits and memory <= room
            if fits:
                step = sum(stage_seconds) + between + host + max(beside, apart)
                busiest = max(*stage_seconds[:-1], stage_seconds[-1] + host + beside, apart)
                yield max(step, shape.micro_batches * busiest) / tree.expected


def test_the_choice_is_the_best_of_all_strategies() -> None:
    infeasible = 0
    for seed in range(PROBLEMS):
        cases, workload = random_problem(seed)
        solution = solve(families(cases), objective=workload.objective)
        least = {case: min(every_strategy(case), default=None) for case in cases}
        feasible = {case: seconds for case, seconds in least.items() if seconds is not None}
        infeasible += not feasible
        if not feasible:
            assert not solution.ranking and not solution.front and solution.pruned[MEMORY] == solution.candidates
            continue
        best_of: dict[tuple[Shape, DraftOption], float] = {}
        for case, seconds in feasible.items():
            score = seconds if workload.objective == LATENCY else -case.shape.batch / seconds
            best_of[case.shape, case.option] = min(score, best_of.get((case.shape, case.option), 1e9))
        scores = sorted(best_of.values())
        found = [one.seconds_per_token if workload.objective == LATENCY else -one.tokens_per_second for one in solution.ranking]
        assert found == pytest.approx(scores[:2], rel=1e-9), seed
        defaults = [case for case in feasible if case.devices == 1 and not case.option.placement]
        plain = [
            seconds if workload.objective == LATENCY else -case.shape.batch / seconds
            for case, seconds in feasible.items()
            if not case.option.placement
        ]
        best = None if solution.plain is None else solution.plain
        assert (None if best is None else best.seconds_per_token if workload.objective == LATENCY else -best.tokens_per_second) == (
            pytest.approx(min(plain)) if plain else None
        )
        assert (solution.baseline is None) == (not defaults)
        if solution.baseline is not None and workload.objective == LATENCY:
            assert solution.ranking[0].seconds_per_token <= solution.baseline.seconds_per_token
    assert 20 < infeasible < PROBLEMS / 2


def test_the_front_is_that_of_all_strategies() -> None:
    for seed in range(0, PROBLEMS, 8):
        cases, workload = random_problem(seed)
        least = [(min(every_strategy(case), default=None), case) for case in cases]
        points = {(seconds, -case.shape.batch / seconds, case.devices) for seconds, case in least if seconds is not None}
        best = [one for one in points if not any(all(a <= b for a, b in zip(other, one, strict=True)) for other in points - {one})]
        front = solve(families(cases), objective=workload.objective).front
        assert sorted((one.seconds_per_token, -one.tokens_per_second, one.case.devices) for one in front) == [
            pytest.approx(one, rel=1e-9) for one in sorted(best)
        ]


def test_a_latency_bound_leaves_the_strategies_within_it() -> None:
    for seed in range(1, 60, 2):
        cases, _ = random_problem(seed)
        free = solve(cases, objective=THROUGHPUT)
        if free.ranking and free.ranking[0].seconds_per_token > free.fastest * 1.05:
            break
    bound = free.fastest * 1.01
    bounded = solve(cases, objective=THROUGHPUT, max_seconds=bound)
    assert bounded.ranking and all(one.seconds_per_token <= bound for one in bounded.ranking)
    assert bounded.pruned[LATENCY_BOUND] > 0
    nothing = solve(cases, objective=THROUGHPUT, max_seconds=free.fastest / 2)
    assert not nothing.ranking and nothing.fastest == pytest.approx(free.fastest)
    assert set(bounded.pruned) <= {MEMORY, BOUND, LATENCY_BOUND}


def test_shapes_use_no_more_devices_and_requests_than_there_are() -> None:
    for workload in (Workload(batch=5), Workload(batch=20, objective=THROUGHPUT)):
        found = list(shapes(workload, 8, tp=2, pp=2, own_devices=1))
        assert Shape(1, 2, 2, 1, workload.batch, workload.batch) in found
        assert all(shape.dp * 5 <= 8 for shape in found)
        assert all(shape.micro_batches * shape.requests * shape.dp >= shape.batch for shape in found)
        assert all(shape.batch <= workload.batch and shape.micro_batches <= 4 for shape in found)
    assert [shape.requests for shape in shapes(Workload(batch=5), 8, tp=2, pp=2, own_devices=0)] == [5, 3, 3, 2, 2, 1, 2]


def test_options_of_drafters_and_degrees() -> None:
    names = [option.drafters for option in draft_options(("a", "ngram"), ("a",), 2)]
    assert names == [(), ("a",), ("a",), ("ngram",), ("a", "ngram"), ("a", "ngram")]
    assert DraftOption() == draft_options(("a",), ("a",), 1)[0]
    assert len(draft_options(("a",), ("a",), 1)) == 2  # there is no device that it could have for itself
    assert degrees(8, 8) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert degrees(64, 8) == [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]
    assert degrees(8, 4) == [1, 2, 3, 4, 8]
