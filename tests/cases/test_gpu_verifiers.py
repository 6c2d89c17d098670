"""Every verifier and truncation over the GPU target, on a CPU: what the device decides is what the host would."""

from copy import copy

import pytest
import torch

from compile_once import model, prompt
from flexspec import SamplingParams
from flexspec.api.lower import captured_graph, run_pipelines
from flexspec.codegen.weight_store import WeightStore
from flexspec.models.load import load_model
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec

compiler = pytest.importorskip("flexspec.codegen.cuda.compile", reason="no Triton here")

NEW = 7
TRUNCATIONS = [{}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.05}, {"top_k": 20, "top_p": 0.9, "min_p": 0.01}]


class NeverRead(torch.Tensor):
    """Logits that do not travel to the host."""

    def cpu(self):
        raise AssertionError("the host reads logits")


@pytest.fixture(scope="module")
def gpu_model():
    graph = captured_graph(load_model(model()))
    run_pipelines(graph)
    options = {"dtype": torch.float32, "max_positions": None, "buckets": (4, 16, 64), "compile_blocks": False}
    return compiler.compile_for_gpu(graph, store=WeightStore(), device=torch.device("cpu"), **options)


def outputs_of(gpu_model, verifier, params, *, on_device, monkeypatch):
    """Of drafts by the model itself, of which next to all would be accepted, and by repetition, of which next to none."""
    drafter = SsmDrafter("self", copy(gpu_model), max_requests=4, block_size=96)  # which reads its logits
    with monkeypatch.context() as patch:
        if on_device:
            forward = gpu_model.forward
            patch.setattr(gpu_model, "forward", lambda *given: forward(*given).as_subclass(NeverRead))
            patch.setattr(gpu_model.tree_walker, "launch", plain_tensors(gpu_model.tree_walker.launch))
            patch.setattr(gpu_model.tree_walker.trials, "launch", plain_tensors(gpu_model.tree_walker.trials.launch))
        else:
            patch.setattr(gpu_model, "tree_walker", None)
        options = {"tree": TreeSpec(widths=(2, 2)), "max_batch": 4, "max_len": 64, "block_size": 8}
        engine = Engine(gpu_model, drafters=[NgramDrafter(), drafter], verifier_name=verifier, **options)
        return engine.generate([list(prompt(length)) for length in (1, 9, 33)], params)


def plain_tensors(launch):
    return lambda logits, trees: launch(logits.as_subclass(torch.Tensor), trees)


@pytest.mark.parametrize("truncation", TRUNCATIONS, ids=str)
@pytest.mark.parametrize("verifier", ["coupled", "mss", "without_replacement", "point_mass", "traversal"])
def test_device_and_host_say_the_same(gpu_model, verifier, truncation, monkeypatch):
    params = [SamplingParams(max_tokens=NEW, temperature=temperature, seed=3, **truncation) for temperature in (0.5, 0.8, 1.0)]
    outputs, expected = (
        outputs_of(gpu_model, verifier, params, on_device=on_device, monkeypatch=monkeypatch) for on_device in (True, False)
    )
    assert [output.token_ids for output in outputs] == [output.token_ids for output in expected]
    assert [output.stats.accepted for output in outputs] == [output.stats.accepted for output in expected]
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)
