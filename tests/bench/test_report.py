"""Rows and ratios, on systems of known speed."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from flexspec.bench.interleave import Sample, interleave
from flexspec.bench.measurement import Measurement
from flexspec.bench.prompt_groups import BenchPrompt, full_groups
from flexspec.bench.report import by_category, make_ratios, make_rows, report_drafts
from flexspec.runtime.draft_counts import DraftCounts
from flexspec.runtime.drafters.merge import merge_trees
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree, TreeSpec


class FakeSystem:
    """Makes `new_tokens` tokens a prompt at `speed` tokens a second, `step` tokens a step."""

    def __init__(self, name: str, speed: float, *, step: int = 1, new_tokens: int = 9) -> None:
        self.name = name
        self.drafters: tuple[str, ...] = ("ngram",) if step > 1 else ()
        self.tree: Tree = TreeSpec(widths=(1,) * (step - 1))
        self._speed, self._step, self._new_tokens = speed, step, new_tokens

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        decode = (self._new_tokens - 1) * len(prompts)
        return Measurement(
            new_tokens=self._new_tokens * len(prompts),
            decode_tokens=decode,
            steps=len(prompts) + decode // self._step,
            prefill_s=0.5,
            decode_s=decode / self._speed,
        )


PROMPTS = [BenchPrompt(id=str(n), category="ab"[n % 2], token_ids=[n]) for n in range(4)]


def measure(systems: Sequence[FakeSystem], *, prompts: int = 3, batch: int = 1) -> list[Sample]:
    return interleave(systems, full_groups(PROMPTS[:prompts], batch)[0], lambda _: None)[0]


def test_rows_and_ratios() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0), FakeSystem("flexspec", 60.0, step=4), FakeSystem("hf", 10.0)]
    samples = measure(systems)
    rows = make_rows(systems, samples)
    assert [f"{row.category} {row.system}" for row in rows[:4]] == ["all flexspec-plain", "all flexspec", "all hf", "a flexspec-plain"]
    speculative = rows[1]
    assert speculative.tokens_per_s == pytest.approx(60.0)
    assert speculative.tokens_per_step == pytest.approx(3.0)  # 9 tokens in 1 + 2 steps
    assert (speculative.prompts, speculative.new_tokens, speculative.drafters, speculative.tree) == (3, 27, ["ngram"], [1, 1, 1])
    assert {row.category: row.prompts for row in rows} == {"all": 3, "a": 2, "b": 1}
    ratios = make_ratios(systems[:2], systems[2:], samples)
    assert {name: round(ratio.value, 6) for name, ratio in ratios.items()} == {
        "flexspec/flexspec-plain": 1.5,
        "flexspec-plain/hf": 4.0,
        "flexspec/hf": 6.0,
    }
    assert {category: len(group) for category, group in by_category(samples).items()} == {"a": 2, "b": 1}


def test_further_systems_are_compared_with_the_main_one_and_with_plain() -> None:
    # Their names say nothing of what they are: with slashes, as paths have them, and with the main one's name in front.
    systems = [FakeSystem("flexspec", 60.0, step=4), FakeSystem("flexspec-plain", 40.0), FakeSystem("./flexspec/a@2,1", 50.0, step=2)]
    ratios = {name: round(ratio.value, 6) for name, ratio in make_ratios(systems, [], measure(systems)).items()}
    assert ratios == {"flexspec/flexspec-plain": 1.5, "flexspec/./flexspec/a@2,1": 1.2, "./flexspec/a@2,1/flexspec-plain": 1.25}
    without_main = systems[1:]
    assert list(make_ratios(without_main, [], measure(without_main))) == ["./flexspec/a@2,1/flexspec-plain"]


def test_drafts_are_summed_by_system_and_category() -> None:
    class Drafting(FakeSystem):
        def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
            counts = DraftCounts()
            tree = merge_trees(1, [("ngram", TokenTree(tokens=[1, 2, 3], parents=[-1, 0, 1]))])
            counts.record(tree, path=[0, 1], num_emitted=2)
            return replace(super().run(prompts, seed), drafts=counts)

    systems = [Drafting("flexspec", 60.0, step=4), FakeSystem("flexspec-plain", 40.0)]
    sums = report_drafts(systems, measure(systems))
    assert {
        system: {
            name: tuple(sum(column) for column in zip(*report.everything.by_depth.values(), strict=True))[:3] for name, report in by.items()
        }
        for system, by in sums.items()
    } == {"flexspec": {"all": (6, 6, 3), "a": (4, 4, 2), "b": (2, 2, 1)}}
    assert list(report_drafts(systems, measure(systems, prompts=1))["flexspec"]) == ["all"]  # a single category


def test_groups_are_paired_as_a_whole() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0), FakeSystem("flexspec", 60.0, step=4)]
    samples = measure(systems, prompts=4, batch=2)
    rows = make_rows(systems, samples)
    assert [(row.system, row.prompts, row.new_tokens) for row in rows] == [("flexspec-plain", 4, 36), ("flexspec", 4, 36)]
    assert by_category(samples) == {}  # all are mixed
    ratio = make_ratios(systems, [], samples)["flexspec/flexspec-plain"]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_without_drafters_there_is_no_speculative_ratio() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0), FakeSystem("hf", 10.0)]
    assert list(make_ratios(systems[:1], systems[1:], measure(systems))) == ["flexspec-plain/hf"]


def test_texts_of_one_token_have_no_decode_speed() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0, new_tokens=1), FakeSystem("hf", 10.0)]
    samples = measure(systems)
    assert make_rows(systems, samples)[0].tokens_per_s == 0
    assert make_ratios(systems[:1], systems[1:], samples) == {}
