"""Systems by what `--also` says."""

from pathlib import Path

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
    ("text", "drafters", "tree"),
    [
        ("a@b+c,d", ("a@b+c,d",), MAIN),
        ("./a@b+c,d @ 2", ("./a@b+c,d",), TreeSpec(widths=(2,))),
        ("suffix+a@b+c,d", ("suffix", "a@b+c,d"), MAIN),
        ("a@b+c,d+ngram@auto", ("a@b+c,d", "ngram"), TreeLimits()),
        ("head@2", ("head@2",), MAIN),
        ("head@2@2", ("head@2",), TreeSpec(widths=(2,))),
        ("head@3", ("head",), TreeSpec(widths=(3,))),
    ],
)
def test_folders_that_exist_may_be_called_anything(
    text: str, drafters: tuple[str, ...], tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a@b+c,d", "head@2"):
        (tmp_path / name).mkdir()
    spec = parse_system(text, main_drafters=["suffix"], main_tree=MAIN)
    assert (spec.drafters, spec.tree) == (drafters, tree)


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
