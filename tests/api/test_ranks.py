"""Two ranks run every kind of plan: the same token ids as one device, the same caches, the same mistakes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as hf_logging

import rank_program
from flexspec.parallel import OWN_DEVICE
from rank_launch import Job, alone, divided
from tiny_models import random_prompt, tiny, tiny_tokenizer

MODELS: dict[str, dict[str, Any]] = {
    "nine_heads": {"family": "llama", "layers": 3, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "opt": {"family": "opt", "layers": 2},
    "gqa": {"family": "llama", "layers": 2},
}
SSMS = ["prune:1", "suffix"]
LENGTHS = [1 + 99 * place // 23 for place in range(24)]
PROMPTS = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]
NEW_TOKENS = 8
CACHES = {"prompt": random_prompt(9, 78), "max_tokens": 24}
TEXTS = {"prompts": PROMPTS, "max_tokens": NEW_TOKENS}
FEW = PROMPTS[4:9]
PLANS = {
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "pp2 in two micro-batches": {"pp": 2, "micro_batches": 2},
    "dp2": {"dp": 2},
    "own device": {"placement": {"prune:1": OWN_DEVICE}},
}
EXACT = [("nine_heads", plan) for plan in PLANS if plan != "pp2"]
EXACT += [("opt", "tp2"), ("opt", "pp2"), ("gqa", "tp2"), ("gqa", "pp2 in two micro-batches")]
CALLS = ["tp2", "pp2 in two micro-batches", "dp2"]
SIZES = [0, 1, 255, *range(4040, 4100), 4096, 8192, 100_000]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    hf_logging.disable_progress_bar()
    made = {}
    for name, options in MODELS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        tiny(**options).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        made[name] = str(folder)
    hf_logging.enable_progress_bar()
    return made


def groups_of(folders: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What the ranks are asked for."""
    nine = folders["nine_heads"]
    parts = {model: divided(folder, tp=2) for model, folder in folders.items()}
    for model, name in EXACT:
        plan = PLANS[name] | (parts[model] if name == "tp2" else {})
        cases: dict[str, Any] = {} if name == "dp2" else {"caches": CACHES}
        cases["texts"] = TEXTS
        if model == "nine_heads" and name in CALLS:
            cases |= {"details": {"prompts": FEW}, "mistakes": {"prompts": FEW}, "interrupted": {"prompts": FEW}}
        yield {"name": f"{model} {name}", "compile": {"model": folders[model], "ssms": SSMS, "parallel": plan}, "cases": cases}
    itself = {"accepts_everything": {"prompts": [PROMPTS[place] for place in (0, 7, 15)], "max_tokens": 40}}
    for name, plan, tree in [
        ("itself pp2", {"pp": 2, "micro_batches": 2}, [1, 1, 1, 1]),
        ("itself own device", {"placement": {nine: OWN_DEVICE}}, [2, 2, 1]),
    ]:
        options = {"model": nine, "ssms": [nine], "parallel": plan, "tree": tree}
        yield {"name": name, "compile": options, "cases": {**itself, "messages": {"sizes": SIZES}}}
    for name, options in wrong(nine).items():
        yield {"name": name, "compile": {"model": nine} | options}
    yield {
        "name": "last",
        "compile": {"model": nine, "ssms": [], "parallel": {"pp": 2}},
        "cases": {"texts": {"prompts": FEW, "max_tokens": 9}},
    }
    options = {"model": nine, "ssms": [], "parallel": {"pp": 2, "micro_batches": 2}, "max_batch": 250, "max_len": 500}
    yield {"name": "memory", "compile": options, "cases": {"no_memory": {"prompts": FEW}}, "fatal": True}


def wrong(folder: str) -> dict[str, dict[str, Any]]:
    """What can't be compiled."""

    def plan(ssms: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
        return {"ssms": list(ssms), "parallel": fields}

    return {
        "world": plan(dp=2, tp=2),
        "model": plan(dp=2, model="0123"),
        "model of a drafter": plan(("prune:1",), placement={"prune:1": OWN_DEVICE}, model="0123"),
        "placement": plan(("suffix",), placement={"prune:1": OWN_DEVICE}),
        "no model": plan(("suffix",), placement={"suffix": OWN_DEVICE}),
        "only the driver knows": plan(("nonsense",), pp=2),
        "only the drafter knows": plan(("prune:99",), placement={"prune:99": OWN_DEVICE}),
        "replicas' drivers know": plan(("nonsense",), dp=2),
        "timeout": plan(pp=2) | {"rank_timeout_s": 0.5},
        "no number": plan(pp=2) | {"rank_timeout_s": "5"},
    }


@pytest.fixture(scope="module")
def ranks(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with alone():
        return Job(list(groups_of(folders)), 2, tmp_path_factory.mktemp("ranks")).results()


@pytest.fixture(scope="module")
def one_device(folders: dict[str, str]) -> dict[str, Any]:
    """What the cases give on one device."""
    found: dict[str, Any] = {}
    for model, folder in folders.items():
        llm = rank_program.compiled(folder, SSMS)
        found[f"{model} texts"] = rank_program.texts(llm, **TEXTS)
        if model == "nine_heads":
            found["details"] = rank_program.details(llm, FEW)
            found["few"] = found["details"]["after"]
    return found


@pytest.mark.parametrize(("model", "plan"), EXACT)
def test_token_ids_are_those_of_one_device(model: str, plan: str, ranks: Any, one_device: Any) -> None:
    wanted = one_device[f"{model} texts"]
    for mode in ("greedy", "seeded"):
        assert len({token for text in wanted[mode] for token in text}) >= 15
        for found in ranks:
            assert found[f"{model} {plan} texts"][mode] == wanted[mode]
            accepted, drafted = found[f"{model} {plan} texts"][f"{mode} drafts"]
            assert 0 < accepted < drafted


@pytest.mark.parametrize(("model", "plan"), [(model, plan) for model, plan in EXACT if plan != "dp2"])
def test_every_part_of_the_cache_is_that_of_a_linear_prefill(model: str, plan: str, ranks: Any) -> None:  # case 6
    found = [of_rank[f"{model} {plan} caches"] for of_rank in ranks]
    assert found[0]["moved"] > 0 and max(one["difference"] for one in found) < 1e-5
    shapes = [one["shape"] for one in found]
    layers = MODELS[model]["layers"]
    if plan == "tp2":
        assert [shape[0] for shape in shapes] == [layers] * 2
        assert [shape[2] for shape in shapes] == {"nine_heads": [2, 1], "opt": [2, 2], "gqa": [1, 1]}[model]
    elif plan != "own device":
        assert sum(shape[0] for shape in shapes) == layers
    assert all(one["least"] > 0 for one in found if one is found[0] or plan != "own device")


@pytest.mark.parametrize("plan", ["pp2", "own device"])
def test_the_model_as_its_own_draft_accepts_everything(plan: str, ranks: Any) -> None:  # case 33
    depths = ranks[0][f"itself {plan} accepts_everything"]["depths"]
    assert len(depths) > 20 and all(deep == accepted for deep, accepted in depths)
    assert ranks[0][f"itself {plan} accepts_everything"]["token_ids"] == ranks[1][f"itself {plan} accepts_everything"]["token_ids"]


@pytest.mark.parametrize("plan", CALLS)
def test_log_probabilities_completions_and_streams(plan: str, ranks: Any, one_device: Any) -> None:
    wanted = one_device["details"]
    for found in (of_rank[f"nine_heads {plan} details"] for of_rank in ranks):
        for name in ("ids", "completions", "streamed", "after"):
            assert found[name] == wanted[name], name
        for name in ("logprobs", "prompt"):
            for one, other in zip(found[name], wanted[name], strict=True):
                assert one and one == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize("plan", CALLS)
def test_mistakes_in_a_call_are_raised_by_every_rank_and_the_next_call_works(plan: str, ranks: Any, one_device: Any) -> None:
    for found in (of_rank[f"nine_heads {plan} mistakes"] for of_rank in ranks):
        message, reasons = found["processor"]
        assert "no more" in message and len(reasons) == len(FEW) and reasons[0] == "error"
        assert "token id 1000000" in found["token"] and "token id 1000000" in found["stream"]
        assert "1 sampling parameters for 5 prompts" in found["params"]
        assert found["after"] == one_device["few"]


@pytest.mark.parametrize("plan", CALLS)
def test_ctrl_c_ends_the_call_on_every_rank_with_what_was_produced(plan: str, ranks: Any, one_device: Any) -> None:
    first, second = (of_rank[f"nine_heads {plan} interrupted"] for of_rank in ranks)
    assert first == second and first["after"] == one_device["few"]
    assert len(first["outputs"]) == len(FEW) and "abort" in first["reasons"]
    for produced, whole in zip(first["outputs"], one_device["few"], strict=True):
        assert produced[: len(whole)] == whole[: len(produced)]


@pytest.mark.parametrize("name", ["itself pp2", "itself own device"])
def test_messages_of_all_sizes(name: str, ranks: Any) -> None:
    assert [found[f"{name} messages"] for found in ranks] == [SIZES] * 2


MESSAGES = {
    "world": ["for 4 ranks (dp=2 x (pp=1 x tp=2))", "2 were started", "torchrun --nproc-per-node 4"],
    "model": ["model='0123'", "another model"],
    "model of a drafter": ["model='0123'", "another model"],
    "placement": ["placement['prune:1']='own device'", "'suffix'"],
    "no model": ["placement['suffix']='own device'", "no model"],
    "only the driver knows": ["'nonsense'", "neither a drafter"],
    "only the drafter knows": ["prune:99"],
    "replicas' drivers know": ["'nonsense'", "neither a drafter"],
    "timeout": ["rank_timeout_s=0.5", "from 2 on"],
    "no number": ["rank_timeout_s='5'", "from 2 on"],
}


@pytest.mark.parametrize("name", MESSAGES)
def test_what_cannot_be_compiled_is_said_by_every_rank(name: str, ranks: Any) -> None:
    for found in ranks:
        assert all(part in found[name] for part in MESSAGES[name]), found[name]
    assert set(MESSAGES) == set(wrong(""))


def test_another_model_can_be_compiled_after_all_that(ranks: Any, one_device: Any) -> None:
    assert [found["last texts"]["greedy"] for found in ranks] == [one_device["few"]] * 2


def test_a_rank_without_memory_is_named(ranks: Any) -> None:
    first, second = (found["memory no_memory"] for found in ranks)
    assert "rank 1 has no memory left" in second and "rank 1 is gone" in first


@pytest.mark.slow
def test_four_ranks(folders: dict[str, str], one_device: Any, tmp_path: Path) -> None:
    plan = divided(folders["nine_heads"], tp=2) | {"pp": 2, "micro_batches": 2}
    cases = {"caches": CACHES, "texts": TEXTS}
    group = {"name": "four", "compile": {"model": folders["nine_heads"], "ssms": SSMS, "parallel": plan}, "cases": cases}
    with alone():
        ranks = Job([group], 4, tmp_path).results()
    for found in ranks:
        assert found["four texts"]["greedy"] == one_device["nine_heads texts"]["greedy"]
        assert found["four texts"]["seeded"] == one_device["nine_heads texts"]["seeded"]
        assert found["four caches"]["difference"] < 1e-5


@pytest.mark.slow
def test_smollm2_with_its_own_drafters(tmp_path: Path) -> None:
    prompts = [random_prompt(length, length, vocab=40_000) for length in (3, 20, 60)]
    texts = {"prompts": prompts, "max_tokens": 24}
    plans = {"tp2": divided("smollm2-135m", tp=2), "pp2": {"pp": 2, "micro_batches": 2}}
    ssms = ["suffix", "smollm2-135m:head"]
    groups = [
        {"name": name, "compile": {"model": "smollm2-135m", "ssms": ssms, "parallel": plan}, "cases": {"texts": texts}}
        for name, plan in plans.items()
    ]
    with alone():
        ranks = Job(groups, 2, tmp_path).results(600)
    wanted = rank_program.texts(rank_program.compiled("smollm2-135m", ssms), **texts)
    for found in ranks:
        for plan in plans:
            assert found[f"{plan} texts"]["greedy"] == wanted["greedy"]
            assert found[f"{plan} texts"]["seeded"] == wanted["seeded"]
            accepted, drafted = found[f"{plan} texts"]["greedy drafts"]
            assert 0 < accepted < drafted
