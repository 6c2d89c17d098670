"""Interleaving, rows and ratios, on systems of known speed."""

from collections.abc import Sequence

import pytest

from flexspec.bench.interleave import BenchPrompt, interleave, warm_up
from flexspec.bench.measurement import Measurement
from flexspec.bench.report import make_ratios, make_rows
from flexspec.tree_shape import Tree, TreeSpec


class FakeSystem:
    """Makes `new_tokens` tokens a prompt at `speed` tokens a second, `step` tokens a step."""

    def __init__(self, name: str, speed: float, *, step: int = 1, new_tokens: int = 9, log: list[str] | None = None) -> None:
        self.name = name
        self.drafters: tuple[str, ...] = ("ngram",) if step > 1 else ()
        self.tree: Tree = TreeSpec(widths=(1,) * (step - 1))
        self._speed, self._step, self._new_tokens = speed, step, new_tokens
        self._log = log if log is not None else []

    def run(self, prompt: Sequence[int], seed: int) -> Measurement:
        self._log.append(f"{self.name} {list(prompt)} {seed}")
        decode = self._new_tokens - 1
        return Measurement(
            new_tokens=self._new_tokens, decode_tokens=decode, steps=1 + decode // self._step, prefill_s=0.5, decode_s=decode / self._speed
        )


PROMPTS = [BenchPrompt(id=str(n), category="ab"[n % 2], token_ids=[n]) for n in range(3)]


def test_systems_take_turns_at_being_first() -> None:
    log: list[str] = []
    systems = [FakeSystem(name, 1.0, log=log) for name in "xyz"]
    said: list[str] = []
    warm_up(systems, PROMPTS[0], said.append)
    assert log == ["x [0] 0", "y [0] 0", "z [0] 0"]
    log.clear()
    samples = interleave(systems, PROMPTS, said.append)
    assert log == ["x [0] 0", "y [0] 0", "z [0] 0", "y [1] 1", "z [1] 1", "x [1] 1", "z [2] 2", "x [2] 2", "y [2] 2"]
    assert [sample.prompt.id for sample in samples] == ["0", "1", "2"]
    assert "prompt 2 of 3: z" in said


def test_rows_and_ratios() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0), FakeSystem("flexspec", 60.0, step=4), FakeSystem("hf", 10.0)]
    samples = interleave(systems, PROMPTS, lambda _: None)
    rows = make_rows(systems, samples)
    assert [f"{row.category} {row.system}" for row in rows[:4]] == ["all flexspec-plain", "all flexspec", "all hf", "a flexspec-plain"]
    speculative = rows[1]
    assert speculative.tokens_per_s == pytest.approx(60.0)
    assert speculative.tokens_per_step == pytest.approx(3.0)  # 9 tokens in 1 + 2 steps
    assert (speculative.prompts, speculative.new_tokens, speculative.drafters, speculative.tree) == (3, 27, ["ngram"], [1, 1, 1])
    assert {row.category: row.prompts for row in rows} == {"all": 3, "a": 2, "b": 1}
    ratios = make_ratios(systems, samples)
    assert {name: round(ratio.value, 6) for name, ratio in ratios.items()} == {
        "flexspec/flexspec-plain": 1.5,
        "flexspec-plain/hf": 4.0,
        "flexspec/hf": 6.0,
    }


def test_without_drafters_there_is_no_speculative_ratio() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0), FakeSystem("hf", 10.0)]
    assert list(make_ratios(systems, interleave(systems, PROMPTS, lambda _: None))) == ["flexspec-plain/hf"]


def test_texts_of_one_token_have_no_decode_speed() -> None:
    systems = [FakeSystem("flexspec-plain", 40.0, new_tokens=1), FakeSystem("hf", 10.0)]
    samples = interleave(systems, PROMPTS, lambda _: None)
    assert make_rows(systems, samples)[0].tokens_per_s == 0
    assert make_ratios(systems, samples) == {}
