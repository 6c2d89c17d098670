"""What `flexspec.compile`, `LLM.statistics`, `explain` and the statistics file tell of drafters and trees."""

import json
import re
from dataclasses import replace

import pytest

import flexspec
from compile_once import compiled, model, prompt, reference
from flexspec import SamplingParams, Strategy, UsageError, load_strategy
from flexspec.api.statistics_report import describe_statistics
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.tree_builder import TreeBuilder
from flexspec.tree_shape import PLAIN, TreeLimits, TreeSpec

DRAFTERS = ["prune:1", "ngram"]
PARAMS = SamplingParams(max_tokens=40)


def used(tree="auto", **options):
    llm = compiled(model(), DRAFTERS, tree=tree, **options)
    assert [output.token_ids for output in llm.generate([list(prompt(9)), list(prompt(40))], PARAMS)] == [
        reference(9, 40),
        reference(40, 40),
    ]
    return llm


def test_statistics_are_those_of_all_requests():
    llm = used([2, 2, 1])
    seen = llm.statistics()
    assert (seen.finished, seen.new_tokens, seen.adaptation) == (2, 80, None)
    assert set(seen.acceptance.by_drafter()) == set(DRAFTERS)
    assert seen.acceptance.total().drafted == seen.drafted > seen.accepted == seen.acceptance.total().accepted > 0


def test_explain_tells_what_came_of_it_once_something_ran():
    llm = compiled(model(), DRAFTERS, tree=[2, 2, 1])
    plan = llm.explain()
    assert "requests" not in plan and "drafts" not in plan
    llm.generate(list(prompt(9)), PARAMS)
    text = llm.explain()
    assert text.startswith(plan)
    seen = llm.statistics()
    for part in (
        "1 finished, 0 aborted, 0 failed, none now",
        f"40 in {seen.profile.steps} passes",
        f"{seen.accepted} of {seen.drafted} accepted",
        "ms/step: schedule",
        "coupling   prune:1 alpha 0.",
    ):
        assert part in text, part
    assert "adaptation" not in text
    figures = text[len(plan) :]
    for kind, names in (("depth", "123"), ("rank", "01"), ("drafter", DRAFTERS)):
        lines = figures.split(f"\n  {kind} ")[1].splitlines()
        assert [line.split()[0] for line in lines[1 : 1 + len(names)]] == sorted(names, key=[line.split()[0] for line in lines].index)
    tables = [line for line in figures.splitlines() if line.startswith("  ")]
    heads = [place for place, line in enumerate(tables) if "drafted" in line]
    for first, last in zip(heads, [*heads[1:], len(tables)], strict=True):
        assert len({len(line) for line in tables[first:last]}) == 1, "columns are aligned"
    assert figures.count("\ncolumns    tried: nodes whose parent was accepted") == 1


def test_a_share_of_nothing_is_no_zero():
    builder = TreeBuilder(1)
    builder.add(builder.add(0, 5), 6)
    counts = DraftCounts()
    counts.record(merge_trees(1, [("ngram", builder.build())]), [0], 1)
    seen = replace(compiled_plain().statistics(), drafted=2, acceptance=counts)
    lines = [line.split() for line in describe_statistics(seen, {}).splitlines()]
    assert ["1", "1", "1", "0", "0.0%", "0.0%", "0.000"] in lines and ["2", "1", "0", "0", "0.0%", "\N{EN DASH}", "\N{EN DASH}"] in lines


def test_explain_tells_what_adaptive_trees_go_by():
    llm = used("auto")
    state = llm.statistics().adaptation
    text = llm.explain()
    assert "tree adaptive, at most 16 deep" in text and "tokens/s lately; ms of a pass by its tokens (measured): 1: " in text
    for name, one in state.drafters.items():
        partly = "asked where cheaper ones promise too little"
        asked = {0.0: "off, tried now and then", 1.0: "asked at every step"}.get(one.share_on, partly)
        assert re.search(rf"\n  {name} +[0-9.]+ ms a proposal; {asked}\n", f"{text}\n")
    assert "coupling   prune:1 alpha 0." in text
    assert "drafts     0 of 0 accepted\n" in f"{compiled_plain().explain()}\n" and "alpha" not in compiled_plain().explain()


def compiled_plain():
    llm = compiled(model())
    llm.generate(list(prompt(9)), SamplingParams(max_tokens=2))
    return llm


@pytest.mark.parametrize("tree", ["auto", [2, 2, 1]])
def test_statistics_are_saved_loaded_and_go_on(tree, tmp_path):
    path = tmp_path / "statistics.json"
    first = used(tree, statistics=path)
    assert not path.exists(), "written when asked for"
    first.save_statistics()
    content = json.loads(path.read_text())
    assert content["version"] == 1 and set(content["drafters"]) == set(DRAFTERS)
    for other in ("auto", [1, 1, 1]):
        again = compiled(model(), DRAFTERS, tree=other, statistics=str(path))
        for name in DRAFTERS:
            rows = list(again.engine.acceptance.of(name).rows())
            assert rows == list(first.engine.acceptance.of(name).rows()) and (rows or tree == "auto")
            known, kept = again.engine.acceptance.of(name), first.engine.acceptance.of(name)
            assert known.chance(0, 0, 1) == pytest.approx(kept.chance(0, 0, 1), abs=0.02)
    again.generate(list(prompt(9)), PARAMS)
    again.save_statistics(tmp_path / "more.json")
    assert json.loads(path.read_text()) == content != json.loads((tmp_path / "more.json").read_text())


def test_statistics_files_that_are_none_are_refused(tmp_path):
    damaged = tmp_path / "damaged.json"
    for content in ("", "{", "[]", '{"version": 2, "drafters": {}}', '{"version": 1, "drafters": {"ngram": [[0, 0, 0, 1, 1]]}}', "\xff"):
        damaged.write_bytes(content.encode("latin-1"))
        with pytest.raises(UsageError, match=r"damaged\.json") as caught:
            compiled(model(), ["ngram"], statistics=damaged)
        assert "\n" not in str(caught.value)
    for wrong in (5, "", ["a.json"], True):
        with pytest.raises(UsageError, match="statistics="):
            compiled(model(), ["ngram"], statistics=wrong)
    with pytest.raises(UsageError, match="can't be read"):
        compiled(model(), ["ngram"], statistics=tmp_path)
    with pytest.raises(UsageError, match="there is no folder '/no/such/dir'; make it"):
        compiled(model(), ["ngram"], statistics="/no/such/dir/x.json")
    llm = compiled(model(), ["ngram"])
    for wrong in (None, "", 5):
        with pytest.raises(UsageError, match="path="):
            llm.save_statistics(wrong)
    with pytest.raises(UsageError, match="can't be written"):
        llm.save_statistics(tmp_path / "no" / "folder.json")
    with pytest.raises(UsageError, match=r"can't be written to 'a\\x00b'.*null"):
        llm.save_statistics("a\0b")


TREES = {
    "auto": ("auto", TreeLimits()),
    "widths": ([2, 2, 1], TreeSpec(widths=(2, 2, 1))),
    "widths as text": ("2,2,1", TreeSpec(widths=(2, 2, 1))),
    "limits": ({"depth": 3, "branch": 2}, TreeLimits(depth=3, branch=2)),
    "limits as text": ("depth=3,branch=2", TreeLimits(depth=3, branch=2)),
    "none": (None, TreeLimits()),
}


@pytest.mark.parametrize("kind", TREES)
def test_every_kind_of_tree_compiles_and_is_saved(kind, tmp_path):
    given, expected = TREES[kind]
    llm = compiled(model(), DRAFTERS, tree=given)
    assert llm.plan.strategy.tree == expected and str(expected) in llm.explain()
    llm.plan.strategy.save(tmp_path / "strategy.json")
    assert load_strategy(tmp_path / "strategy.json") == llm.plan.strategy
    assert compiled(model(), DRAFTERS, strategy=tmp_path / "strategy.json").plan.strategy == llm.plan.strategy
    assert llm.generate(list(prompt(9)), PARAMS)[0].token_ids == reference(9, 40)


@pytest.mark.parametrize(
    ("tree", "as_json"),
    [
        ([], []),
        ([2, 1], [2, 1]),
        ("auto", {"depth": 16, "branch": 3, "budget": 24}),
        ({"budget": 5}, {"depth": 16, "branch": 3, "budget": 5}),
    ],
)
def test_a_strategy_keeps_any_tree(tree, as_json, tmp_path):
    strategy = Strategy(dtype="float32", tree=tree)
    strategy.save(tmp_path / "strategy.json")
    assert json.loads((tmp_path / "strategy.json").read_text())["tree"] == as_json
    assert load_strategy(tmp_path / "strategy.json") == strategy


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("narrow", "'auto', widths such as 2,2,1, or limits such as depth=8"),
        ("depth=8,depth=4", "gives depth twice"),
        ({"depth": 0}, "depth=0"),
        ({"width": 2}, "depth, branch, budget"),
        ([0], "width"),
        ({2, 1}, "not allowed"),
        (b"2,1", "not allowed"),
        (3, "tree=3"),
    ],
)
def test_a_tree_of_no_kind_is_refused(tree, expected, tmp_path):
    for make in (
        lambda: compiled(model(), ["ngram"], tree=tree),
        lambda: flexspec.Strategy(dtype="float32", tree=tree),
    ):
        with pytest.raises(UsageError, match=expected):
            make()


def test_trees_and_drafters_go_together():
    assert flexspec.compile(model(), [], tree="auto", max_len=64).plan.strategy.tree == PLAIN
    with pytest.raises(UsageError, match="needs a drafter"):
        flexspec.compile(model(), [], tree={"depth": 3}, max_len=64)
    assert compiled(model(), DRAFTERS, verifier="mss").plan.strategy.tree == TreeSpec(widths=(2, 2, 1, 1))
    with pytest.raises(UsageError, match="does not allow adaptive trees"):
        compiled(model(), DRAFTERS, verifier="mss", tree="auto")


def test_the_log_is_as_asked_for(caplog):
    with caplog.at_level("INFO", logger="flexspec"):
        used([2, 1], log_every_s=1e-9)
        assert caplog.records and "tokens/s" in caplog.records[0].getMessage()
        caplog.clear()
        used([2, 1])
        used([2, 1], log_every_s=None)
        assert not caplog.records
    with pytest.raises(UsageError, match="log_every_s=0"):
        compiled(model(), log_every_s=0)
