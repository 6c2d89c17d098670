"""Mixtures of experts for GPUs: refused by name, or run by the reference where that is allowed."""

import pytest
import torch
from codegen_cases import in_chunks, text

from expert_models import expert_model
from flexspec.codegen.cuda import compile as compiling
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from graph_cases import copied, reference_logits, served

MODULE = expert_model("mixtral", num_hidden_layers=1)


@pytest.fixture(scope="module")
def mixture() -> ModelGraph:
    model = capture(MODULE, name="mixtral")
    with torch.no_grad():
        run_passes(model, (*RECOGNITION, *SERVING))
    return model


def test_there_are_no_kernels_on_gpus(mixture: ModelGraph) -> None:
    assert not compiling._has_experts(served("llama")[1], allow_references=False)
    says = r"model mixtral is a mixture of experts, which has kernels on CPUs only: give device='cpu'"
    with pytest.raises(UncoveredCase, match=rf"{says}, or allow_reference_kernels=True"):
        compiling._has_experts(mixture, allow_references=False)
    with pytest.warns(RuntimeWarning, match=f"references run in the place of kernels, slowly, and no pass is captured: {says}"):
        assert compiling._has_experts(mixture, allow_references=True)


def test_the_reference_runs_in_the_target_s_graph(mixture: ModelGraph) -> None:
    model = compiling.compile_for_gpu(
        copied(mixture),
        dtype=torch.float32,
        max_positions=None,
        buckets=(4, 16),
        store=WeightStore(),
        device=torch.device("cpu"),
        compile_blocks=False,
    )
    ids = text(13)
    torch.testing.assert_close(in_chunks(model, ids, 5), reference_logits(MODULE, torch.from_numpy(ids)), atol=1e-4, rtol=1e-4)
