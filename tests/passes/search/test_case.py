"""Equation 6 against a simulation of the decode pipeline, micro-batches going round in it; and the lower bounds."""

import heapq

import numpy as np
import pytest

from flexspec.passes.search.case import Case, DraftCosts, StageCosts
from flexspec.passes.search.space import DraftOption, Shape
from flexspec.passes.search.trees import GrownTree

LAYERS = 6
TREE = GrownTree(size=0, expected=1.0, levels={}, branch=1)


def random_case(rng: np.random.Generator) -> Case:
    pp, micro_batches = int(rng.integers(1, 5)), int(rng.integers(1, 7))
    stages = StageCosts(
        stages=pp,
        kinds=rng.integers(0, 2, LAYERS),
        kind_seconds=rng.uniform(0.1, 2.0, (1, 1, 2)),
        first=rng.uniform(0, 2.0, 1),
        last=rng.uniform(0, 2.0, 1),
        between=rng.uniform(0, 1.0, 1),
        kind_bytes=np.ones((1, 2)),
        first_bytes=np.zeros(1),
        last_bytes=np.zeros(1),
        room=np.full(1, 10.0),
    )
    drafting = DraftCosts(
        trees=(TREE,),
        host=rng.uniform(0, 1.0, 1),
        beside=rng.uniform(0, 3.0, 1) * rng.integers(0, 2),
        apart=rng.uniform(0, 6.0, 1) * rng.integers(0, 2),
        beside_bytes=0.0,
        apart_bytes=0.0,
    )
    shape = Shape(1, pp, 1, micro_batches, 1, micro_batches)
    return Case(shape=shape, option=DraftOption(), division=None, stages=stages, drafting=drafting)


def simulate(stage_seconds: list[float], message: float, host: float, beside: float, apart: float, micro_batches: int) -> float:
    """Seconds between two steps of a micro-batch, once the pipeline has settled.

    Every stage serves whoever comes first. The last one goes on to decide what was accepted and to draft, and only then takes the
    next micro-batch; drafters with devices of their own begin with the decision, and the step ends when all drafts are there.
    """
    free = [0.0] * (len(stage_seconds) + 1)  # the last is the drafters' own device
    events = [(0.0, number, 0) for number in range(micro_batches)]  # when it arrives, micro-batch, station
    rounds: list[list[float]] = [[] for _ in range(micro_batches)]
    while len(rounds[0]) < 400:
        now, number, station = heapq.heappop(events)
        is_last = station == len(stage_seconds) - 1
        done = max(now, free[station]) + stage_seconds[station] + (host if is_last else 0.0)
        if is_last:
            started = max(done, free[-1])
            free[-1] = started + apart
            free[station] = done + beside
            back = max(free[station], free[-1] if apart else 0.0)
            rounds[number].append(back)
            heapq.heappush(events, (back + message, number, 0))
        else:
            free[station] = done
            heapq.heappush(events, (done + message, number, station + 1))
    return (rounds[0][-1] - rounds[0][199]) / (len(rounds[0]) - 200)


def test_a_simulated_pipeline_takes_as_long_as_equation_6_says() -> None:
    rng = np.random.default_rng(0)
    waiting = 0
    for _ in range(60):
        case = random_case(rng)
        solved, too_large = case.solve()
        assert solved is not None and not too_large
        costs, drafting = case.stages, case.drafting
        seconds, at = [], 0
        for count in solved.split.layers:
            seconds.append(float(costs.kind_seconds[0, 0, costs.kinds[at : at + count]].sum()))
            at += count
        seconds[0] += float(costs.first[0])
        seconds[-1] += float(costs.last[0])
        message = float(costs.between[0]) / len(seconds)
        host, beside, apart = (float(values[0]) for values in (drafting.host, drafting.beside, drafting.apart))
        simulated = simulate(seconds, message, host, beside, apart, case.shape.micro_batches)
        assert simulated == pytest.approx(solved.cycle, rel=1e-9)
        waiting += solved.cycle > sum(seconds) + float(costs.between[0]) + host + max(beside, apart) + 1e-9
    assert 20 < waiting < 55  # of both kinds: bound by the round, and bound by the busiest device


def test_no_cut_is_better_than_the_bound() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        case = random_case(rng)
        bounds, fits = case.bounds()
        solved, _ = case.solve()
        assert fits.all() and solved is not None and solved.cycle >= bounds[0] * (1 - 1e-12)


def test_within_a_limit_the_best_is_found_and_beyond_it_nothing_better_than_the_limit() -> None:
    rng = np.random.default_rng(2)
    beyond = 0
    for _ in range(80):
        case = random_case(rng)
        best, _ = case.solve()
        assert best is not None
        for factor in (0.999, 1.0, 1.3):
            limit = best.seconds_per_token * factor
            found, too_large = case.solve(limit)
            assert not too_large
            if factor < 1.0:
                beyond += found is not None
                assert found is None or found.seconds_per_token > limit
            else:
                assert found is not None and found.seconds_per_token == best.seconds_per_token
    assert beyond
