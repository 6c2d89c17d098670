"""What experts read of weights that lie in one tensor is a view of it."""

import pytest
import torch

from expert_models import expert_model
from flexspec.ir.capture import capture
from flexspec.ir.ops import ROUTED_EXPERTS
from flexspec.passes.expert_weights import take_expert_weights
from flexspec.passes.match import is_parameter
from graph_cases import graph_logits, prompt, reference_logits


@pytest.mark.parametrize(("name", "each"), [("mixtral", 3), ("gpt_oss", 6)])
def test_weights_of_experts_are_parameters_and_views(name: str, each: int) -> None:
    module, ids = expert_model(name), prompt(9)
    model = capture(module, name=name)
    assert take_expert_weights(model) == (2 * each, 2 * each)
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module, ids), atol=1e-4, rtol=1e-4)
    memory = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    operands = [arg for node in model.nodes(ROUTED_EXPERTS) for arg in node.args[3:9] if arg is not None]
    assert len(operands) == 2 * each and all(map(is_parameter, operands))
    assert all(model.parameter(arg).untyped_storage().data_ptr() in memory for arg in operands)  # type: ignore[arg-type]
    shapes = [tuple(model.parameter(arg).shape) for arg in model.nodes(ROUTED_EXPERTS)[0].args[3:8:2]]  # type: ignore[arg-type]
    experts = len(model.parameter(operands[0]))  # type: ignore[arg-type]
    assert shapes == [(experts, 48, 32), (experts, 48, 32), (experts, 32, 48)]


def test_models_that_share_weights_share_what_is_made_of_them() -> None:
    module = expert_model("mixtral")
    origins = []
    for _ in range(2):
        model = capture(module, name="mixtral")
        take_expert_weights(model)
        origins.append([model.origin(arg) for arg in model.nodes(ROUTED_EXPERTS)[0].args[3:8:2]])  # type: ignore[arg-type]
    assert origins[0] == origins[1] and len(set(origins[0])) == 3
