"""The whole runtime over the GPU target, on a CPU, where the kernels' references run: pages, buckets, walks and preemption."""

import pytest
import torch

from compile_once import model, prompt, reference
from flexspec import SamplingParams
from flexspec.api.lower import captured_graph, run_pipelines
from flexspec.codegen.weight_store import WeightStore
from flexspec.models.load import load_model
from flexspec.runtime.device_step import DeviceStep
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeLimits, TreeSpec

compiler = pytest.importorskip("flexspec.codegen.cuda.compile", reason="no Triton here")

NEW = 24
LENGTHS = (1, 9, 33)


def compiled(**options):
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
        **options,
    )


@pytest.fixture(scope="module")
def gpu_model():
    return compiled()


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


@pytest.mark.usefixtures("time_is_free")
@pytest.mark.parametrize("tree", [TreeSpec(widths=(2, 2, 1)), TreeLimits(depth=4, branch=2, budget=12)], ids=str)
def test_trees_of_a_model_that_drafts_alone_are_verified_before_the_host_sees_them(gpu_model, tree, monkeypatch):
    params = [SamplingParams(max_tokens=NEW, temperature=temperature, seed=3) for temperature in (0.0, 0.7, 1.0)]
    plain = [output.token_ids for output in engine_of(gpu_model).generate(prompts(), params)]
    engine = Engine(gpu_model, drafters=[own_draft(gpu_model)], tree=tree, max_batch=4, max_len=64, block_size=8, pass_tokens=40)
    decided = []
    decide = DeviceStep.decide
    monkeypatch.setattr(DeviceStep, "decide", lambda step, *given: decided.append(step) or decide(step, *given))
    outputs = engine.generate(prompts(), params)
    assert [output.token_ids for output in outputs] == plain
    assert len(decided) > 4 and engine.profile().steps <= len(decided) + 4
    assert all(output.stats.accepted > 10 for output in outputs)


def test_over_an_8_bit_cache_speculation_changes_nothing_either():
    rounded = compiled(cache_dtype=torch.float8_e4m3fn)
    params = SamplingParams(max_tokens=NEW, temperature=1.0, seed=5)
    plain = [output.token_ids for output in engine_of(rounded).generate(prompts(20), params)]
    engine = engine_of(rounded, [own_draft(rounded)], (2, 2, 1), num_blocks=10)
    assert engine.cache.storage.keys.dtype == torch.float8_e4m3fn
    outputs = engine.generate(prompts(20), params)
    assert [output.token_ids for output in outputs] == plain
    assert engine.statistics().preemptions > 0 and sum(output.stats.accepted for output in outputs) > 40
