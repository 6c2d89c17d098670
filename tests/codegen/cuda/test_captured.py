"""What captured graphs share: memory of one pool, in which any of them may write where another one's results lie."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from compile_once import model, prompt
from flexspec import SamplingParams
from flexspec.api.lower import captured_graph, run_pipelines
from flexspec.codegen.weight_store import WeightStore
from flexspec.models.load import load_model
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec

compiler = pytest.importorskip("flexspec.codegen.cuda.compile", reason="no Triton here")


@pytest.fixture(scope="module")
def gpu_model() -> Any:
    graph = captured_graph(load_model(model()))
    run_pipelines(graph)
    options = {
        "dtype": torch.float32,
        "max_positions": None,
        "buckets": (4, 16, 64),
        "device": torch.device("cpu"),
        "compile_blocks": False,
    }
    return compiler.compile_for_gpu(graph, store=WeightStore(), **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_results_are_not_read_after_other_work_of_the_model(monkeypatch: pytest.MonkeyPatch, gpu_model: Any, temperature: float) -> None:
    from flexspec.codegen.cuda.captured import Captured

    run = Captured.run
    earlier: list[Tensor] = []

    def spoiling(self: Captured[Any], work: Callable[[], Any]) -> Any:
        with torch.inference_mode():
            for tensor in earlier:
                tensor.fill_(torch.nan if tensor.is_floating_point() else 2**30)
        earlier[:] = []
        result = run(self, work)
        earlier.extend([result] if isinstance(result, Tensor) else result)
        return result

    params = SamplingParams(max_tokens=12, temperature=temperature, seed=3)
    prompts = [list(prompt(length)) for length in (1, 9, 33)]
    plain = [
        output.token_ids
        for output in Engine(gpu_model, drafters=(), tree=TreeSpec(widths=()), max_batch=4, max_len=64).generate(prompts, params)
    ]
    monkeypatch.setattr(Captured, "run", spoiling)
    # It drafts for itself, so that its passes and its growing trees share a pool.
    draft = SsmDrafter("self", gpu_model, max_requests=4, block_size=96, alpha=1.0)
    outputs = Engine(gpu_model, drafters=[draft], tree=TreeSpec(widths=(2, 2, 1)), max_batch=4, max_len=64).generate(prompts, params)
    assert [output.token_ids for output in outputs] == plain
    assert sum(output.stats.accepted for output in outputs) > 10
