"""Systems by what `--also` says."""

import pytest

from flexspec.bench.system_spec import SystemSpec, parse_system, union_of_drafters
from flexspec.errors import UsageError
from flexspec.tree_shape import Tree, TreeLimits, TreeSpec

MAIN = TreeSpec(widths=(2, 1))


@pytest.mark.parametrize(
    ("text", "drafters", "tree"),
    [
        ("ngram", ("ngram",), MAIN),
        ("suffix+ngram@auto", ("suffix", "ngram"), TreeLimits()),
        (" prune:4 + ngram @ 2,2,1", ("prune:4", "ngram"), TreeSpec(widths=(2, 2, 1))),
        ("@8", ("suffix",), TreeSpec(widths=(8,))),
        ("@depth=4,budget=8", ("suffix",), TreeLimits(depth=4, budget=8)),
        ("./a@b/model@1,1", ("./a@b/model",), TreeSpec(widths=(1, 1))),
    ],
)
def test_what_is_left_out_is_the_main_systems(text: str, drafters: tuple[str, ...], tree: Tree) -> None:
    spec = parse_system(text, main_drafters=["suffix"], main_tree=MAIN)
    assert (spec.name, spec.drafters, spec.tree) == (text, drafters, tree)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "also='' is not allowed: give DRAFTERS, DRAFTERS@TREE or @TREE"),
        ("@", "also='@' is not allowed"),
        ("ngram@", "also='ngram@' is not allowed"),
        ("ngram++suffix", "is not allowed"),
        ("ngram@2,x", "tree='2,x'"),
        ("none", "plain decoding is always measured"),
        ("hf", "reports call another system that; if it is a folder, give ./hf"),
        ("flexspec", "reports call another system that"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_system(text, main_drafters=["suffix"], main_tree=MAIN)


def test_a_tree_needs_drafters() -> None:
    with pytest.raises(UsageError, match=r"also='@2,1' needs drafters to fill its tree, .* give DRAFTERS@2,1"):
        parse_system("@2,1", main_drafters=[], main_tree=None)


def test_each_drafter_is_compiled_once_unless_a_system_has_it_twice() -> None:
    systems = [SystemSpec(name="", drafters=drafters, tree=None) for drafters in (("a", "b"), ("b",), ("c", "b", "b"), ("b", "a"))]
    assert union_of_drafters(systems) == (["a", "b", "c", "b"], [[0, 1], [1], [2, 1, 3], [1, 0]])
    assert union_of_drafters([]) == ([], [])
