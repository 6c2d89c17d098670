"""Two ranks run every kind of plan: the same token ids as one device, the same caches, the same mistakes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging as hf_logging

import rank_prompts
from flexspec.api.prompts import PromptEncoder
from flexspec.models.load import load_model
from flexspec.parallel import OWN_DEVICE
from rank_launch import COLUMN_THEN_ROW, Job, alone
from tiny_models import random_prompt, tiny, tiny_tokenizer

MODELS: dict[str, dict[str, Any]] = {
    "nine_heads": {"family": "llama", "layers": 3, "hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "opt": {"family": "opt", "layers": 2},
    "gqa": {"family": "llama", "layers": 2, "hidden_size": 200, "num_attention_heads": 25, "num_key_value_heads": 5},  # case 23
}
OTHER_HEADS = "other heads"
SSMS = {"nine_heads": ["prune:1", "suffix"], "opt": ["prune:1", "suffix"], "gqa": ["prune:1", OTHER_HEADS, "suffix"]}
LENGTHS = [1 + 99 * place // 23 for place in range(24)]
PROMPTS = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]
NEW_TOKENS = 8
CACHES = {"prompt": random_prompt(9, 79), "max_tokens": 24}
TEXTS = {"prompts": PROMPTS, "max_tokens": NEW_TOKENS}
FEW = PROMPTS[4:9]
PLANS = {
    "tp2": {"tp": 2, "partition": COLUMN_THEN_ROW},
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
    for name, options in (MODELS | {OTHER_HEADS: {"family": "llama", "layers": 1, "num_attention_heads": 2}}).items():
        folder: Path = tmp_path_factory.mktemp(name)
        tiny(**options).save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        made[name] = str(folder)
    bare: Path = tmp_path_factory.mktemp("no_weights")
    for file in Path(made["nine_heads"]).iterdir():
        if file.suffix == ".json":
            shutil.copy(file, bare)
    made["no_weights"] = str(bare)
    hf_logging.enable_progress_bar()
    return made


def compiling(folders: dict[str, str], model: str) -> dict[str, Any]:
    return {"model": folders[model], "ssms": [folders.get(ssm, ssm) for ssm in SSMS[model]]}


def groups_of(folders: dict[str, str]) -> Iterator[dict[str, Any]]:
    """What the ranks are asked for."""
    nine = folders["nine_heads"]
    for model, name in EXACT:
        cases: dict[str, Any] = {} if name == "dp2" else {"caches": CACHES}
        cases["texts"] = TEXTS
        if model == "nine_heads" and name in CALLS:
            cases |= {"details": {"prompts": FEW}, "mistakes": {"prompts": FEW}, "interrupted": {"prompts": FEW}}
        yield {"name": f"{model} {name}", "compile": compiling(folders, model) | {"parallel": PLANS[name]}, "cases": cases}
    itself = {"accepts_everything": {"prompts": [PROMPTS[place] for place in (0, 7, 15)], "max_tokens": 40}}
    for name, plan, tree in [
        ("itself pp2", {"pp": 2, "micro_batches": 2}, [1, 1, 1, 1]),
        ("itself own device", {"placement": {nine: OWN_DEVICE}}, [2, 2, 1]),
    ]:
        options = {"model": nine, "ssms": [nine], "parallel": plan, "tree": tree}
        yield {"name": name, "compile": options, "cases": {**itself, "messages": {"sizes": SIZES}}}
    for name, options in wrong(nine).items():
        yield {"name": name, "compile": {"model": nine} | options}
    for name in ("tp2", "dp2"):
        options = {"model": nine, "ssms": [], "parallel": PLANS[name]}
        yield {"name": f"no weights {name}", "compile": options, "on_rank": {"1": {"model": folders["no_weights"]}}}
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
        "nothing divided": plan(tp=2, partition={"block_0": ["replicated", "replicated"]}),
        "layers": plan(pp=2, stage_layers=[1, 1]),
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
def ran(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What all cases give on one device, and on every rank."""
    whole = [{"name": model, "compile": compiling(folders, model), "cases": {"texts": TEXTS}} for model in MODELS]
    whole[0]["cases"] |= {"details": {"prompts": FEW}}
    with alone():
        return Job(list(groups_of(folders)), 2, tmp_path_factory.mktemp("ranks"), alone=whole).results()


@pytest.fixture(scope="module")
def ranks(ran: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return ran[1:]


@pytest.fixture(scope="module")
def one_device(ran: list[dict[str, Any]]) -> dict[str, Any]:
    return ran[0] | {"details": ran[0]["nine_heads details"], "few": ran[0]["nine_heads details"]["after"]}


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
        assert [shape[2] for shape in shapes] == {"nine_heads": [2, 1], "opt": [2, 2], "gqa": [3, 2]}[model]
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
        assert "1 sampling parameters for 5 prompts" in found["params"] and "n=2 is not allowed in `stream`" in found["completions"]
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
    "nothing divided": ["tp=2", "divides nothing", "flexspec search --export-strategy"],
    "layers": ["stage_layers=[1, 1] makes 2 layers", "has 3"],
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


@pytest.mark.parametrize("plan", ["tp2", "dp2"])
def test_what_is_wrong_on_one_rank_alone_is_said_by_every_rank(plan: str, ranks: Any) -> None:
    messages = [found[f"no weights {plan}"] for found in ranks]
    assert messages[0] == messages[1] and messages[0].startswith("on rank 1: ") and "weights" in messages[0]


def test_another_model_can_be_compiled_after_all_that(ranks: Any, one_device: Any) -> None:
    assert [found["last texts"]["greedy"] for found in ranks] == [one_device["few"]] * 2


def test_a_rank_without_memory_is_named(ranks: Any) -> None:
    first, second = (found["memory no_memory"] for found in ranks)
    assert "rank 1 has no memory left" in second and "rank 1 is gone" in first


@pytest.mark.slow
def test_four_ranks(folders: dict[str, str], one_device: Any, tmp_path: Path) -> None:
    plan = PLANS["tp2"] | {"pp": 2, "micro_batches": 2}
    cases = {"caches": CACHES, "texts": TEXTS}
    group = {"name": "four", "compile": compiling(folders, "nine_heads") | {"parallel": plan}, "cases": cases}
    with alone():
        ranks = Job([group], 4, tmp_path).results()[1:]
    for found in ranks:
        assert found["four texts"]["greedy"] == one_device["nine_heads texts"]["greedy"]
        assert found["four texts"]["seeded"] == one_device["nine_heads texts"]["seeded"]
        assert found["four caches"]["difference"] < 1e-5


@pytest.mark.slow
def test_smollm2_with_its_own_drafters(tmp_path: Path) -> None:
    model, ssms = "smollm2-135m", ["suffix", "smollm2-135m:head"]
    encode = PromptEncoder(load_model(model).tokenizer, bos_token_id=None, name=model).chat
    prompts = [encode([{"role": "user", "content": prompt}]) for prompt in rank_prompts.PROMPTS]
    cases = {"texts": {"prompts": prompts, "max_tokens": 40}}
    options = {"model": model, "ssms": ssms, "max_len": 320}
    groups = [{"name": name, "compile": options | {"parallel": PLANS[name]}, "cases": cases} for name in PLANS if name != "own device"]
    with alone():
        one, *ranks = Job(groups, 2, tmp_path, alone=[{"name": "one", "compile": options, "cases": cases}]).results(1200)
    wanted = one["one texts"]
    assert len(wanted["greedy"]) == 24
    for found in ranks:
        for group in groups:
            for mode in ("greedy", "seeded"):
                assert found[f"{group['name']} texts"][mode] == wanted[mode], f"{group['name']}, {mode}"
                accepted, drafted = found[f"{group['name']} texts"][f"{mode} drafts"]
                assert 0 < accepted < drafted
