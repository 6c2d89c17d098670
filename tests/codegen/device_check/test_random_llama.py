import pytest
import torch

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.device_check.random_llama import RandomLlama
from flexspec.codegen.device_check.sizes import DRY, FULL
from flexspec.codegen.kv_storage import KVStorage


def test_sizes_are_those_of_known_models() -> None:
    assert [(size.name, size.parameters) for size in FULL.models] == [("1B", 1_235_814_400), ("8B", 8_030_261_248)]
    assert FULL.models[0].read_parameters == 1_235_814_400 and FULL.models[1].read_parameters == 8_030_261_248 - 128_256 * 4096


@pytest.fixture(scope="module")
def llama() -> RandomLlama:
    return RandomLlama(DRY.models[0], torch.device("cpu"))


def test_forms_of_a_model_share_weights_that_are_all_different(llama: RandomLlama) -> None:
    first = llama.compiled(is_fused=False, is_captured=True)
    second = llama.compiled(is_fused=False, is_captured=False)
    assert first is not second and llama.compiled(is_fused=False, is_captured=True) is first
    weights = [
        {str(node.target): getattr(model._module, str(node.target)) for node in model._module.graph.find_nodes(op="get_attr")}
        for model in (first, second)
    ]
    names = [name for name, weight in weights[0].items() if weight.dtype == torch.bfloat16]
    assert all(weights[0][name] is weights[1][name] for name in names)
    learnt = [weights[0][name] for name in names]
    assert sum(weight.numel() for weight in learnt) == llama.size.parameters and all(weight.is_contiguous() for weight in learnt)
    matrices = [weight for weight in learnt if weight.dim() == 2]
    assert len({float(weight.double().sum()) for weight in matrices}) == len(matrices)


def test_a_text_goes_on_with_the_same_token_by_a_wide_margin(llama: RandomLlama) -> None:
    model = llama.compiled(is_fused=False, is_captured=False)
    ids = torch.arange(12).numpy()
    logits = model.forward(chain_batch(ids), KVStorage(model.kv_shape, num_blocks=1, block_size=16))
    best = logits.topk(2).values
    assert logits.argmax(-1).tolist() == ids.tolist() and (best[:, 0] - best[:, 1] > 1).all()
