import json
import os

import pytest

from flexspec.acceptance import AcceptanceTable, DrafterAcceptance, load_acceptance
from flexspec.errors import UsageError


def seen(times: int, accepted: int, *, grade: int = 0, rank: int = 0, depth: int = 1) -> DrafterAcceptance:
    part = DrafterAcceptance()
    for trial in range(times):
        part.record(grade, rank, depth, trial * accepted // times != (trial + 1) * accepted // times)
    return part


def test_an_unseen_drafter_is_worth_a_try_and_less_so_by_rank():
    chances = [DrafterAcceptance().chance(0, rank, 1) for rank in range(4)]
    assert 0.1 < chances[0] < 0.5 and chances == sorted(chances, reverse=True)


@pytest.mark.parametrize("accepted", [0, 30, 50, 90, 100])
def test_a_chance_is_a_bound_below_the_share_seen(accepted):
    few, many = seen(10, accepted // 10).chance(0, 0, 1), seen(100, accepted).chance(0, 0, 1)
    assert abs(many - accepted / 100) < 0.08
    if accepted in (30, 50):
        assert few < many < accepted / 100, "the less was seen, the more careful"


def test_an_unseen_grade_or_depth_leans_on_what_is_like_it():
    part = seen(100, 90, grade=3)
    assert part.chance(7, 0, 1) > 0.6, "another grade of the same rank and depth"
    assert part.chance(3, 0, 2) > 0.6, "the next depth"
    assert part.chance(3, 1, 1) < 0.3, "the next rank is another matter"


def test_grades_are_told_apart():
    part = seen(100, 95, grade=1)
    for _ in range(100):
        part.record(2, 0, 1, False)
    assert part.chance(1, 0, 1) > 0.85 and part.chance(2, 0, 1) < 0.05


def test_old_counts_fade():
    part = seen(1000, 1000)
    for _ in range(700):
        part.record(0, 0, 1, False)
    assert part.chance(0, 0, 1) < 0.1


def test_far_ranks_and_depths_share_their_counts():
    part = DrafterAcceptance()
    for _ in range(50):
        part.record(0, 900, 900, True)
    assert part.chance(0, 901, 902) > 0.8
    assert [kind for kind, _, _ in part.rows()] == [(-1, 7, 15), (0, 7, 15)]


def test_chances_of_all_ranks_sum_to_at_most_one():
    part = DrafterAcceptance()
    for step in range(400):
        for rank in range(4):
            part.record(0, rank, 1, step % 4 == rank)
    assert sum(part.chance(0, rank, 1) for rank in range(4)) <= 1


def test_a_saved_table_is_the_same_again(tmp_path):
    table = AcceptanceTable()
    for step in range(60):
        table.of("ngram").record(step % 3, step % 2, 1 + step % 4, step % 5 > 1)
    table.of("ssm").record(0, 0, 1, True)
    table.save(tmp_path / "statistics.json")
    again = load_acceptance(tmp_path / "statistics.json")
    assert again.names() == ["ngram", "ssm"]
    for name in table.names():
        assert list(again.of(name).rows()) == list(table.of(name).rows())
        for grade, rank, depth in [(0, 0, 1), (2, 1, 3), (5, 0, 1)]:
            assert again.of(name).chance(grade, rank, depth) == pytest.approx(table.of(name).chance(grade, rank, depth))
    assert [path.name for path in tmp_path.iterdir()] == ["statistics.json"], "nothing half-written is left"


ROW = [0, 0, 1, 5.0, 2.0]


DAMAGED_ROWS = [
    3,
    [3],
    [ROW[:4]],
    [[*ROW[:3], 2.0, 5.0]],
    [[0, 0, 0, 5.0, 2.0]],
    [[-2, 0, 1, 5.0, 2.0]],
    [[0, 0, 1, "5", 2.0]],
    [[0, True, 1, 5, 2]],
]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"version": 2, "drafters": {}}',
        '{"version": 1}',
        *(json.dumps({"version": 1, "drafters": {"ngram": rows}}) for rows in DAMAGED_ROWS),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path, content):
    path = tmp_path / "statistics.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"statistics\.json"):
        load_acceptance(path)


def test_a_file_that_cannot_be_read_or_written_is_named(tmp_path):
    with pytest.raises(UsageError, match="nowhere"):
        load_acceptance(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="missing"):
        AcceptanceTable().save(tmp_path / "missing" / "statistics.json")


def test_a_link_stays_a_link_and_what_is_no_file_is_left_alone(tmp_path):
    table = AcceptanceTable()
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    table.save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "real.json").is_file()
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "a\0b"):
        with pytest.raises(UsageError, match="can't be written"):
            table.save(path)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(UsageError, match=r"not JSON|can't be read"):
        load_acceptance("a\0b")
