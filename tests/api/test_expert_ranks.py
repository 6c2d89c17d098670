"""Two ranks share the experts of a layer, and heads that take turns in one linear: token ids and caches are those of one device."""

from pathlib import Path

import pytest
from transformers import PreTrainedModel
from transformers.utils import logging as hf_logging

from expert_models import expert_model
from family_models import family
from rank_launch import COLUMN_THEN_ROW, Job, alone
from tiny_models import random_prompt, tiny_tokenizer

PLAN = {"tp": 2, "partition": COLUMN_THEN_ROW}
TEXTS = {"prompts": [random_prompt(length, length) for length in (1, 9, 40, 77)], "max_tokens": 24}
CACHES = {"prompt": random_prompt(9, 79), "max_tokens": 24}


def _models() -> dict[str, PreTrainedModel]:
    return {"mixtral": expert_model("mixtral"), "gpt_oss": expert_model("gpt_oss"), "gpt_neox": family("gpt_neox")}


@pytest.mark.slow
def test_two_ranks_write_what_one_device_writes(tmp_path: Path) -> None:
    hf_logging.disable_progress_bar()
    whole, groups, models = [], [], _models()
    for name, module in models.items():
        folder = tmp_path / name
        module.save_pretrained(folder)
        tiny_tokenizer().save_pretrained(folder)
        options = {"model": str(folder), "ssms": ["prune:1", "suffix"]}
        whole.append({"name": name, "compile": options, "cases": {"texts": TEXTS}})
        groups.append({"name": name, "compile": options | {"parallel": PLAN}, "cases": {"texts": TEXTS, "caches": CACHES}})
    hf_logging.enable_progress_bar()
    with alone():
        one, *ranks = Job(groups, 2, tmp_path, alone=whole).results()
    for name in models:
        wanted = one[f"{name} texts"]
        assert len({token for text in wanted["greedy"] for token in text}) >= 15
        for found in ranks:
            assert found[f"{name} caches"]["difference"] < 1e-5
            for mode in ("greedy", "seeded"):
                assert found[f"{name} texts"][mode] == wanted[mode], f"{name}, {mode}"
                accepted, drafted = found[f"{name} texts"][f"{mode} drafts"]
                assert 0 < accepted < drafted
