"""Layer-pruned drafts: the first layers of a model, with everything shared."""

import copy

import pytest
import torch
from torch import nn

from flexspec.errors import UsageError
from flexspec.models import prune_layers
from tiny_models import FAMILIES, Family, random_prompt, tiny


def _logits(module: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return module(torch.tensor([random_prompt(12)])).logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_it_is_the_model_built_with_fewer_layers(family: Family, count: int) -> None:
    model = tiny(family, layers=3)
    before, config_before = _logits(model), copy.deepcopy(model.config)
    pruned = prune_layers(model, count)

    smaller_config = copy.deepcopy(model.config)
    smaller_config.num_hidden_layers = count
    smaller = type(model)(smaller_config).eval()
    smaller.load_state_dict({name: weight for name, weight in model.state_dict().items() if name in smaller.state_dict()})
    assert torch.equal(_logits(pruned), _logits(smaller))
    assert pruned.config.num_hidden_layers == count
    assert len(getattr(pruned.config, "layer_types", None) or range(count)) == count

    assert torch.equal(_logits(model), before)
    assert model.config.to_dict() == config_before.to_dict()
    own = {id(parameter) for parameter in model.parameters()}
    assert all(id(parameter) in own for parameter in pruned.parameters())


def test_a_cached_generation_works() -> None:
    pruned = prune_layers(tiny("mistral", layers=3), 2)
    assert pruned.generate(torch.tensor([random_prompt(12)]), max_new_tokens=20, do_sample=False).shape == (1, 32)


@pytest.mark.parametrize("count", [0, -1, 4])
def test_a_count_out_of_range(count: int) -> None:
    with pytest.raises(UsageError, match=rf"prune:{count} .* has 3 layers, give a number from 1 to 3"):
        prune_layers(tiny("llama", layers=3), count)


def test_modules_whose_layers_are_unknown() -> None:
    with pytest.raises(UsageError, match="num_hidden_layers"):
        prune_layers(nn.Linear(2, 2), 1)
    model = tiny("llama", layers=2)
    model.other = nn.ModuleList([nn.Identity(), nn.Identity()])
    with pytest.raises(UsageError, match="2 of its module lists"):
        prune_layers(model, 1)
