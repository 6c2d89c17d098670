import pytest

from flexspec.calibration.report.known_acceptance import expected_tokens
from flexspec.calibration.report.published import PAPER_TREE, counted_and_modelled, first_devices, rank_chances
from flexspec.calibration.report.published_text import acceptance_table
from flexspec.passes.search.hardware import load_hardware


def test_ranks_relate_as_the_hit_rates_do() -> None:
    chances = rank_chances()
    hits = [66.4, 76.8, 81.0, 84.2, 85.6]  # means over the data sets
    assert [sum(chances[: k + 1]) / sum(chances) for k in range(5)] == pytest.approx([hit / hits[-1] for hit in hits])
    assert chances == sorted(chances, reverse=True)
    assert sum(chances) < 1


def test_the_papers_tree_emits_what_was_counted() -> None:
    assert expected_tokens(PAPER_TREE, rank_chances()) == pytest.approx((3.21 + 3.46 + 2.86 + 3.62 + 2.97) / 5)


def test_other_widths_come_out_close() -> None:
    for k, counted, modelled in counted_and_modelled(rank_chances()):
        if k > 1:
            assert modelled == pytest.approx(counted, rel=0.06)


def test_the_table_has_all_widths() -> None:
    text = acceptance_table()
    assert all(f"⟨1,1,{k},1,1,1,1,1⟩" in text for k in range(1, 6))


def test_first_devices_are_alone() -> None:
    one = first_devices(load_hardware("a10gx4"), 1)
    assert one.num_devices == 1
    assert 0 in one.links
    assert not any(device in one.links for device in (1, 2, 3))
