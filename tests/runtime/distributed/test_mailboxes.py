"""Messages through shared memory; ranks are threads."""

from typing import Any, cast

import pytest
import torch

from flexspec.runtime.distributed import mailboxes
from flexspec.runtime.distributed.mailboxes import Mailboxes, mailbox_bytes
from parallel_cases import on_ranks
from shared_regions import ThreadRegion

A, B = 1, 2  # tags


@pytest.fixture(autouse=True)
def small_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "_MOST_BYTES", 256)


def boxes_of(size: int, *, room_s: float = 30.0) -> list[Mailboxes]:
    memory = cast(Any, ThreadRegion(mailbox_bytes(size)))
    return [Mailboxes(memory, place=place, size=size, room_s=room_s) for place in range(size)]


def taken(box: Mailboxes, source: int, like: torch.Tensor, tag: int) -> torch.Tensor | None:
    tensor = torch.zeros_like(like)
    return tensor if box.take(source, tensor, tag, limit_s=None) else None


def test_messages_of_all_sizes_and_types_arrive_in_order_around_the_ring() -> None:
    first, second = boxes_of(2)
    for count in [*range(1, 30), 3, 59, 1]:
        for message in (torch.arange(count, dtype=torch.float32) + 0.5, torch.arange(count) - 7):
            if message.nbytes <= 240:
                assert first.put(1, message, A)
                assert torch.equal(cast(torch.Tensor, taken(second, 0, message, A)), message)


def test_a_tag_that_comes_too_early_is_kept_for_later() -> None:
    first, second = boxes_of(2)
    early, late = torch.arange(5), torch.rand(3, 2)
    assert first.put(1, early, A) and first.put(1, early + 1, A) and first.put(1, late, B)
    assert torch.equal(cast(torch.Tensor, taken(second, 0, late, B)), late)
    assert torch.equal(cast(torch.Tensor, taken(second, 0, early, A)), early)
    assert torch.equal(cast(torch.Tensor, taken(second, 0, early, A)), early + 1)


def test_what_does_not_fit_is_told_in_its_place() -> None:
    first, second = boxes_of(2)
    small, large = torch.arange(2), torch.arange(100)
    assert first.put(1, small, A)
    assert not first.put(1, large, A), "larger than the ring"
    assert first.put(1, small + 5, A)
    assert not first.put(1, torch.arange(21), B), "the ring is nearly full"
    assert torch.equal(cast(torch.Tensor, taken(second, 0, small, A)), small)
    assert taken(second, 0, large, B) is None, "told although other messages came first"
    assert taken(second, 0, large, A) is None
    assert torch.equal(cast(torch.Tensor, taken(second, 0, small, A)), small + 5)
    assert first.put(1, torch.arange(21), B), "there is room again"


def test_a_receiver_that_makes_no_room_is_given_up_after_the_time_that_the_job_has() -> None:
    first, _ = boxes_of(2, room_s=0.01)
    with pytest.raises(AssertionError, match="thread 1 did not come"):
        for _ in range(99):
            first.put(1, torch.arange(2), A)


def test_ranks_that_all_talk_at_once() -> None:
    boxes, rounds = boxes_of(3), 200

    def run(rank: int) -> list[int]:
        heard = []
        others = [other for other in range(3) if other != rank]
        for number in range(rounds):
            message = torch.full((1 + number % 7,), 1000 * rank + number)
            fitted = [boxes[rank].put(other, message, A) for other in others]
            assert all(fitted)
            for other in others:
                received = torch.zeros_like(message)
                assert boxes[rank].take(other, received, A, limit_s=None)
                heard.append(int(received.max()))
        return heard

    for rank, heard in enumerate(on_ranks(3, run)):
        assert heard == [1000 * other + number for number in range(rounds) for other in range(3) if other != rank]
