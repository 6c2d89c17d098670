import pytest

from flexspec.calibration.report.known_acceptance import expected_tokens, known_acceptance
from flexspec.passes.search.trees import chances_of, grow_trees


def test_the_table_says_what_is_given_at_every_depth() -> None:
    levels = chances_of(known_acceptance("drafter", [0.6, 0.2]), "drafter")
    assert len(levels) == 16
    for level in levels:
        assert level[:2] == pytest.approx([0.6, 0.2], abs=1e-3)
        assert level[2:] == pytest.approx([0.0] * 6, abs=1e-3)


def test_the_best_trees_are_chains_where_only_first_children_are_right() -> None:
    trees = grow_trees({"drafter": chances_of(known_acceptance("drafter", [0.8]), "drafter")}, 16)
    for size in (0, 4, 8, 16):
        assert trees[size].expected == pytest.approx(expected_tokens((1,) * size, [0.8]), rel=1e-3)
    assert trees[16].levels == {"drafter": (1,) * 16}


def test_a_static_tree_emits_what_its_levels_hold() -> None:
    assert expected_tokens((), [0.5]) == 1
    assert expected_tokens((1, 1), [0.5]) == pytest.approx(1.75)
    assert expected_tokens((2, 1), [0.5, 0.25]) == pytest.approx(1 + 0.75 + 0.375)
