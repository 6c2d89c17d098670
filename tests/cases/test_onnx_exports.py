"""Decoders exported by `torch.onnx.export`: drafting for PyTorch models and the reverse, pruned, sampled, tied, from the command line."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import flexspec
from compile_once import compiled
from flexspec import SamplingParams
from flexspec.api.inspection import inspect_model
from flexspec.cli.main import main
from flexspec.models.load import load_model
from flexspec.models.prune import prune_layers
from rank_launch import Job, alone
from tiny_models import greedy_reference, random_prompt, tiny, tiny_tokenizer

PROMPTS = [random_prompt(length, seed=length) for length in (1, 7, 40)]
GREEDY = SamplingParams(max_tokens=40, temperature=0)
SEEDED = [SamplingParams(max_tokens=20, temperature=0.8, top_p=0.9, seed=seed) for seed in range(len(PROMPTS))]


class Logits(nn.Module):
    """The call that is exported: logits alone, without a cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits


def exported(model: PreTrainedModel, folder: Path) -> Path:
    """As `torch.onnx.export` writes it without further packages."""
    path, ids = folder / "model.onnx", torch.ones(2, 9, dtype=torch.long)
    names = ["input_ids", "attention_mask"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter is deprecated, and tells of every Python number that it takes for constant
        torch.onnx.export(
            Logits(model).eval(),
            (ids, ids.clone()),
            path,
            dynamo=False,
            opset_version=17,
            input_names=names,
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in names},
        )
    return path


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return tiny("llama")


@pytest.fixture(scope="module")
def path(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untied")
    tiny_tokenizer().save_pretrained(folder)
    return exported(model, folder)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    module = tiny("gpt2", tie_word_embeddings=True)
    return module, exported(module, tmp_path_factory.mktemp("tied"))


def test_row_24_logits_are_pytorchs_and_weights_count_once(model: PreTrainedModel, path: Path, tied: tuple[PreTrainedModel, Path]) -> None:
    """Case 24."""
    for module, file in ((model, path), tied):
        ids = torch.tensor([random_prompt(30)])
        with torch.no_grad():
            logits = load_model(file).module(ids, torch.arange(30)[None])
            wanted = module(ids).logits
        assert (logits - wanted).abs().max() < 1e-4 * wanted.abs().max()
    # The exporter writes a tied matrix twice, once transposed; the untied model is counted in `test_the_commands`.
    assert inspect_model(tied[1], dtype="float32").parameters == sum(one.numel() for one in tied[0].parameters())


def test_a_pytorch_model_drafts_for_an_onnx_file(model: PreTrainedModel, path: Path, time_is_free: None) -> None:
    greedy = [greedy_reference(model, prompt, 40) for prompt in PROMPTS]
    assert len({token for text in greedy for token in text}) >= 15
    llm = compiled(path, [prune_layers(model, 1)], dtype="float32")
    outputs = llm.generate(PROMPTS, GREEDY)
    assert [output.token_ids for output in outputs] == greedy
    accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
    assert 0 < accepted < drafted


@pytest.mark.slow
def test_they_draft_for_each_other(model: PreTrainedModel, path: Path, tmp_path: Path, time_is_free: None) -> None:
    """Greedy text is Hugging Face's and seeded text that of plain decoding, whichever of them drafts."""
    greedy = [greedy_reference(model, prompt, 40) for prompt in PROMPTS]
    small: Any = prune_layers(model, 1)
    small_path = exported(small, tmp_path)
    seeded = None
    for target, ssms in ((model, []), (path, []), (path, [small]), (path, ["prune:1", "suffix"]), (model, [small_path]), (path, [model])):
        is_alike = ssms == [model]
        llm = compiled(target, ssms, dtype="float32", tree=[1, 1, 1] if is_alike else "auto")
        outputs = llm.generate(PROMPTS, GREEDY)
        assert [output.token_ids for output in outputs] == greedy
        sampled = [output.token_ids for output in llm.generate(PROMPTS, SEEDED)]
        seeded = seeded or sampled
        assert sampled == seeded
        accepted, drafted = (sum(getattr(output.stats, what) for output in outputs) for what in ("accepted", "drafted"))
        assert not ssms or (0.9 * drafted < accepted if is_alike else 0 < accepted < drafted)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3])
def test_pruned_it_is_the_pruned_pytorch_model(count: int, tmp_path: Path) -> None:
    module = tiny("mistral", layers=3)
    whole: Any = load_model(exported(module, tmp_path)).module
    pruned: Any = prune_layers(whole, count)
    ids = torch.tensor([random_prompt(30)])
    with torch.no_grad():
        wanted = prune_layers(module, count)(ids).logits
        assert (pruned(ids, torch.arange(30)[None]) - wanted).abs().max() < 1e-4 * wanted.abs().max()
    assert pruned.config.num_hidden_layers == count and whole.config.num_hidden_layers == 3
    assert {id(one) for one in pruned.parameters()} <= {id(one) for one in whole.parameters()}


SLOW_DEVICES = {
    "version": 1,
    "sources": ["made up, so that dividing the weights pays"],
    "hosts": [
        {
            "memory_gb": 8,
            "bandwidth_gb_s": 1,
            "devices": [{"count": 2, "name": "slow", "tflops": {"float32": 1}, "memory_gb": 1, "bandwidth_gb_s": 0.001}],
        }
    ],
    "links": [{"between": ["device", "host"], "latency_us": 1, "bandwidth_gb_s": 10}],
}


@pytest.mark.slow
def test_two_ranks_run_what_the_search_finds(model: PreTrainedModel, path: Path, tmp_path: Path) -> None:
    """Tensor-parallel as the search divides the graph, and in two stages; each rank with its own part of the file's weights."""
    hardware = tmp_path / "slow.json"
    hardware.write_text(json.dumps(SLOW_DEVICES))
    drafters = ["prune:1", "suffix"]
    options: dict[str, Any] = {"context": 20, "new_tokens": 20, "dtype": "float32"}
    found = flexspec.search(path, drafters, hardware, **options)
    alike = flexspec.search(model.config, drafters, hardware, **options)
    assert found.strategy.parallel.tp == 2
    assert found.choice.predicted.ms_per_token == pytest.approx(alike.choice.predicted.ms_per_token, rel=0.02)

    texts = {"texts": {"prompts": PROMPTS, "max_tokens": 40}}
    compiling = {"model": str(path), "ssms": drafters}
    searched = {"tp": 2, "partition": {place: list(names) for place, names in found.strategy.parallel.partition.items()}}
    plans = {"tp2": searched, "pp2": {"pp": 2, "micro_batches": 2}}
    groups = [{"name": name, "compile": compiling | {"parallel": plan}, "cases": texts} for name, plan in plans.items()]
    with alone():
        one, *ranks = Job(groups, 2, tmp_path, alone=[{"name": "one", "compile": compiling, "cases": texts}]).results()
    assert one["one texts"]["greedy"] == [greedy_reference(model, prompt, 40) for prompt in PROMPTS]
    for of_rank in ranks:
        for plan in plans:
            for mode in ("greedy", "seeded"):
                accepted, drafted = of_rank[f"{plan} texts"][f"{mode} drafts"]
                assert of_rank[f"{plan} texts"][mode] == one["one texts"][mode] and 0 < accepted < drafted


@pytest.mark.slow
def test_drafters_that_were_tuned_to_another_model_are_refused(path: Path) -> None:
    with pytest.raises(flexspec.UsageError, match=r"was tuned to a PyTorch model, and .*model.onnx is an ONNX file"):
        flexspec.search(path, ["smollm2-135m:head"], "a10gx4")
    with pytest.raises(flexspec.UsageError, match=r"tuned to models of transformers, and .*model.onnx is none: give suffix"):
        compiled(path, ["smollm2-135m:head"])


def test_the_commands(model: PreTrainedModel, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, text = tmp_path / "report.json", "the thing"
    assert main(["inspect", str(path), "--json", str(report)]) == 0
    assert json.loads(report.read_text())["parameters"] == sum(one.numel() for one in model.parameters())
    options = ["--dtype", "float32", "--max-tokens", "20", "--temperature", "0"]
    assert main(["generate", str(path), "--prompt", text, "--ssm", "suffix", "--ssm", "prune:1", "--json", str(report), *options]) == 0
    ids = tiny_tokenizer()(text)["input_ids"]
    assert json.loads(report.read_text())["outputs"][0]["token_ids"] == greedy_reference(model, ids, 20)
    capsys.readouterr()
