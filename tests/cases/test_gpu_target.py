"""The whole runtime over the GPU target, on a CPU, where the kernels' references run: pages, buckets, walks and preemption."""

import pytest
import torch

from compile_once import model, prompt, reference
from flexspec import SamplingParams
from flexspec.api.lower import captured_graph, run_pipelines
from flexspec.codegen.weight_store import WeightStore
from flexspec.models.load import load_model
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec

compiler = pytest.importorskip("flexspec.codegen.cuda.compile", reason="no Triton here")

NEW = 24
LENGTHS = (1, 9, 33)


@pytest.fixture(scope="module")
def gpu_model():
    graph = captured_graph(load_model(model()))
    run_pipelines(graph)
    return compiler.compile_for_gpu(
        graph,
        dtype=torch.float32,
        max_positions=None,
        buckets=(4, 16, 64),
        store=WeightStore(),
        device=torch.device("cpu"),
        compile_blocks=False,
    )


def engine_of(gpu_model, drafters=(), widths=(), **options):
    return Engine(gpu_model, drafters=drafters, tree=TreeSpec(widths=widths), max_batch=4, max_len=64, block_size=8, **options)


def own_draft(gpu_model):
    return SsmDrafter("self", gpu_model, max_requests=4, block_size=96, alpha=1.0)


def prompts(*more):
    return [list(prompt(length)) for length in (*LENGTHS, *more)]


def test_greedy_texts_are_hugging_faces(gpu_model):
    expected = [reference(length, 120)[:NEW] for length in LENGTHS]
    for drafters, widths in (([], ()), ([NgramDrafter()], (2, 2, 1))):
        outputs = engine_of(gpu_model, drafters, widths).generate(prompts(), SamplingParams(max_tokens=NEW))
        assert [output.token_ids for output in outputs] == expected
    assert 0 < sum(output.stats.accepted for output in outputs) < sum(output.stats.drafted for output in outputs)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("widths", [(1, 1, 1, 1), (2, 2, 1)], ids=str)
def test_row_33_its_own_draft_is_accepted_to_the_full_depth_after_preemption_too(gpu_model, widths, temperature):
    params = SamplingParams(max_tokens=NEW, temperature=temperature, seed=3)
    plain = [output.token_ids for output in engine_of(gpu_model).generate(prompts(20), params)]
    records = []
    engine = engine_of(gpu_model, [own_draft(gpu_model)], widths, num_blocks=10, observer=records.append)
    assert [output.token_ids for output in engine.generate(prompts(20), params)] == plain
    assert engine.statistics().preemptions > 0
    assert all(len(record.path) - 1 == max(record.tree.depths()) for record in records)
    assert max(len(record.path) for record in records) == len(widths) + 1
