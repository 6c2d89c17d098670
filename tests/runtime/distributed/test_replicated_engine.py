"""What a driver tells the ranks that serve it when a call ends otherwise than it should."""

from collections.abc import Generator, Sequence
from typing import Any, NoReturn, cast

import pytest

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.parallel import ParallelPlan
from flexspec.runtime.distributed.commands import Finish
from flexspec.runtime.distributed.rank_failure import RankFailure
from flexspec.runtime.distributed.ranks import Ranks
from flexspec.runtime.distributed.replicated_engine import ReplicatedEngine
from flexspec.runtime.distributed.topology import Topology
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Chunk
from toy_model import ToyModel


class Job:
    """A driver's view of a job of two ranks."""

    rank = 0

    def __init__(self) -> None:
        self.told: list[Any] = []

    def send_all(self, ranks: Sequence[int], message: object) -> None:
        assert ranks == [1] and isinstance(message, Finish)
        self.told.append(message.outcome)


def driver() -> tuple[Job, Engine, ReplicatedEngine]:
    job, engine = Job(), Engine(ToyModel(), max_len=40)
    return job, engine, ReplicatedEngine(cast(Ranks, job), Topology(ParallelPlan(pp=2)), engine=engine, worker=None, drivers=None)


def test_the_cause_of_a_failure_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    job, engine, replicated = driver()
    failure = RankFailure("rank 0 has no memory left")

    def fails(*_: object) -> NoReturn:
        raise failure

    monkeypatch.setattr(engine.model, "forward", fails)
    with pytest.raises(RankFailure, match="rank 0 has no memory left"):
        replicated.generate([[1]], SamplingParams(max_tokens=3))
    assert job.told == [failure]
    with pytest.raises(RankFailure, match="rank 0 has no memory left"):
        list(replicated.stream([1], SamplingParams(max_tokens=3)))
    assert job.told == [failure, None, failure]


@pytest.mark.parametrize(("prompt", "n", "message"), [([10**6], 1, "token id 1000000"), ([1], 2, "n=2 is not allowed in `stream`")])
def test_what_a_stream_cannot_be_is_told_at_the_call(prompt: list[int], n: int, message: str) -> None:
    job, _, replicated = driver()
    with pytest.raises(UsageError, match=message):
        replicated.stream(prompt, SamplingParams(max_tokens=3, temperature=1.0, n=n))
    (told,) = job.told
    assert isinstance(told, UsageError) and message in str(told)


def test_a_stream_that_is_closed_early_is_told_as_far_as_it_went() -> None:
    job, _, replicated = driver()
    chunks = cast(Generator[Chunk], replicated.stream([1], SamplingParams(max_tokens=9)))
    first = next(chunks)
    chunks.close()
    assert job.told == [None, [first]] and not replicated.engine.has_work
