"""Results as JSON and back."""

import json
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from bench_results import PATH, bench_result
from flexspec.bench.measurement import Measurement
from flexspec.bench.result_json import results_from_json, results_to_json
from flexspec.bench.statistics import Ratio


def test_nothing_is_lost() -> None:
    one = bench_result()
    other = replace(
        one,
        settings=one.settings | {"batch": 4, "synthetic_acceptance": 0.5},
        undrafted=0.25,
        too_few=["3"],
        slow_targets=["slow"],
        interrupted=True,
    )
    content = json.loads(json.dumps(results_to_json([one, other])))
    assert results_from_json(content) == [one, other]
    assert (content["format"], content["version"]) == ("flexspec-bench", 1)


def test_what_other_readers_find() -> None:
    (content,) = results_to_json([bench_result()])["results"]
    drafts = content["drafts"]["flexspec"]["all"]
    assert drafts["by_depth"][0] == {"depth": 1, "drafted": 1, "tried": 1, "accepted": 1, "steps": 1}
    assert drafts["hits"] == [{"k": 1, "steps": 1, "hits": 1, "is_complete": True, "rate": 1.0}]
    assert list(drafts["drafters"]) == ["suffix", PATH] and len(drafts["drafters"][PATH]["by_depth"]) == 1
    assert content["step_ms"]["flexspec"]["forward"] == 1.0 and content["step_ms"]["flexspec"]["drafters_run_models"]
    assert content["samples"][0]["prompts"] == [{"id": "0", "digest": "digest 0"}]


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        (("settings", "temperature"), "0", "temperature is '0'"),
        (("settings", "tree"), [0], "tree="),
        (("machine", "cores"), None, "cores is None"),
        (("rows", 0, "tree"), "2,x", "tree="),
        (("rows", 0, "prefill_s"), "soon", "could not convert"),
        (("ratios", "flexspec/vllm"), {"value": 1, "low": None, "high": None}, "ratios of systems"),
        (("ratios", "flexspec/hf"), {"value": 0, "low": None, "high": None}, "a ratio of 0"),
        (("step_ms", "vllm"), {}, "steps"),
        (("drafts", "hf"), {}, "drafts or times of systems"),
        (("drafts", "flexspec", "all", "hits", 0, "steps"), 0, "hits in 0 steps"),
        (("samples", 0, "measurements", "hf", "decode_s"), 0, "a measurement of"),
        (("samples", 0, "measurements", "vllm"), {}, "new_tokens"),
        (("samples",), [], "not every system was measured"),
        (("left_out",), [], "indices"),
    ],
)
def test_damage_is_noticed(path: tuple[Any, ...], value: Any, error: str) -> None:
    content = deepcopy(results_to_json([bench_result()]))
    place: Any = content["results"][0]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError), match=error):
        results_from_json(json.loads(json.dumps(content)))


def test_systems_that_were_not_measured_everywhere() -> None:
    one = bench_result()
    first = one.samples[0]
    without = replace(first, measurements={name: each for name, each in first.measurements.items() if name != "hf"})
    with pytest.raises(ValueError, match="not every system"):
        results_from_json(results_to_json([replace(one, samples=[without])]))
    with pytest.raises(ValueError, match="not every system"):
        results_from_json(results_to_json([replace(one, rows=[row for row in one.rows if row.system != "flexspec-plain"])]))
    with pytest.raises(ValueError, match="no results"):
        results_from_json({"results": []})


def test_a_text_of_one_token_has_no_speed() -> None:
    one = bench_result()
    ended = Measurement(new_tokens=1, decode_tokens=0, steps=1, prefill_s=0.5, decode_s=0.0)
    sample = replace(one.samples[0], measurements=dict.fromkeys(one.samples[0].measurements, ended))
    ratios = {"flexspec/hf": Ratio(value=2.0, low=None, high=None)}
    result = replace(one, samples=[sample], ratios=ratios, ratios_by_category={})
    assert results_from_json(results_to_json([result])) == [result]
