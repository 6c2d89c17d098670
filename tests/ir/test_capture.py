"""A captured graph is the model, and capturing changes nothing."""

import copy
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.graph import fake
from flexspec.ir.ops import ATTENTION
from flexspec.ir.verify import verify
from graph_cases import captured, graph_logits, prompt, reference_logits
from tiny_models import FAMILIES, Family, tiny

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("family", FAMILIES)
def test_graph_equals_model_at_every_shape(family: Family) -> None:
    module, model = captured(family)
    verify(model, "captured")
    assert model.facts.num_layers == len(model.nodes(ATTENTION)) == 2
    for batch, length in ((1, 1), (1, 7), (3, 2), (2, 40)):
        ids = torch.stack([prompt(length, seed) for seed in range(batch)])
        positions = torch.arange(length).expand(batch, length)
        with torch.no_grad():
            expected = module(input_ids=ids, position_ids=positions, use_cache=False).logits
            got = model.module(ids, positions)
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_positions_are_an_input(family: Family) -> None:
    _, model = captured(family)
    ids, positions = prompt(6)[None], torch.arange(6)[None]
    shifted = positions + torch.tensor([[0, 3, 3, 9, 9, 9]])
    with torch.no_grad():
        assert (model.module(ids, shifted) - model.module(ids, positions)).abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_module_is_left_alone(dtype: torch.dtype) -> None:
    module = tiny("qwen2", layers=1).to(dtype).train()
    before = copy.deepcopy(module)
    parameters = {name: parameter for name, parameter in module.named_parameters()}
    ids = prompt(5)
    model = capture(module, name="qwen2")
    assert dict(module.named_parameters()).keys() == parameters.keys()
    for name, parameter in module.named_parameters():
        assert parameter is parameters[name] and parameter.requires_grad and parameter.dtype == dtype
        assert torch.equal(parameter, before.get_parameter(name))
    assert module.config._attn_implementation == before.config._attn_implementation != "flexspec"
    assert module.config.to_dict() == before.config.to_dict() and module.training
    assert all(buffer.dtype == torch.float32 for buffer in model.module.buffers())
    torch.testing.assert_close(graph_logits(model, ids), reference_logits(module.float().eval(), ids), atol=2e-5, rtol=1e-5)


def test_float32_weights_are_shared_not_copied() -> None:
    module, model = captured("llama")
    assert model.module.lm_head_weight.data_ptr() == module.lm_head.weight.data_ptr()


def test_a_tied_weight_appears_once() -> None:
    module = tiny("qwen3", layers=1, tie_word_embeddings=True)
    model = capture(module, name="qwen3")
    shared = [
        node for node in model.graph.find_nodes(op="get_attr") if model.parameter(node).data_ptr() == module.lm_head.weight.data_ptr()
    ]
    assert len(shared) == 1 and len(shared[0].users) == 2
    torch.testing.assert_close(graph_logits(model, prompt(5)), reference_logits(module, prompt(5)), atol=2e-5, rtol=1e-5)


def test_attributes_with_alike_names_stay_apart() -> None:
    class Alike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Module()
            self.a.b_c = nn.Embedding(7, 7)
            self.a_b = nn.Module()
            self.a_b.c = nn.Linear(7, 7)
            self.a_b_c = nn.Parameter(torch.randn(7))
            self.a.b = nn.Module()
            self.a.b.c = nn.Parameter(torch.randn(7))

        def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
            return self.a_b.c(self.a.b_c(input_ids)) * self.a_b_c + self.a.b.c

    module = Alike().eval()
    model = capture(module, name="alike")
    torch.testing.assert_close(graph_logits(model, torch.arange(5)), reference_logits(module, torch.arange(5)))


def attention_arguments(family: Family, **overrides: object) -> list[tuple[object, ...]]:
    return [node.args[3:] for node in captured(family, **overrides)[1].nodes(ATTENTION)]


def test_attention_attributes_arrive() -> None:
    assert attention_arguments("mistral") == [(8**-0.5, 8, None, None)] * 2
    assert attention_arguments("llama") == [(8**-0.5, None, None, None)] * 2
    assert [scale for scale, *_ in attention_arguments("opt")] == [1.0, 1.0]  # OPT scales its queries
    assert attention_arguments("gpt2") == [(8**-0.5, None, None, None)] * 2


def test_the_window_matters_and_ends_where_it_should() -> None:
    _, model = captured("mistral")
    ids, other = prompt(17), prompt(17)
    other[:2] = (other[:2] + 1) % 288
    with torch.no_grad():
        wide = tiny("mistral", sliding_window=9)
        assert (reference_logits(wide, ids) - graph_logits(model, ids))[-1].abs().max() > 1e-3
    # Two layers with a window of 8 reach back 2 * 7 tokens: the last row knows tokens 2 … 16.
    assert torch.equal(graph_logits(model, ids)[-1], graph_logits(model, other)[-1])
    assert not torch.equal(graph_logits(model, ids)[-2], graph_logits(model, other)[-2])


def test_scale_of_gpt2_layers_can_differ() -> None:
    module = tiny("gpt2", scale_attn_by_inverse_layer_idx=True)
    model = capture(module, name="gpt2")
    scales = [node.args[3] for node in model.nodes(ATTENTION)]
    assert scales == pytest.approx([8**-0.5, 8**-0.5 / 2])
    torch.testing.assert_close(graph_logits(model, prompt(9)), reference_logits(module, prompt(9)), atol=2e-5, rtol=1e-5)


class Small(nn.Module):
    """A module that is refused in the way of its subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11)
        self.register_buffer("count", torch.zeros(1))


class NoTokens(Small):
    def forward(self, position_ids: Tensor) -> Tensor:
        return self.head(self.table(position_ids))


class DependsOnData(Small):
    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        return self.head(x) if bool(x.sum() > 0) else self.head(-x)


class Counts(Small):
    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        self.count.add_(1)
        return self.head(self.table(input_ids)) + self.count


class CountsByLen(Small):
    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return self.head(self.table(input_ids) * torch.ones(len(position_ids[0]), 1))


class ReturnsDict(Small):
    def forward(self, input_ids: Tensor, position_ids: Tensor) -> dict[str, Tensor]:
        return {"scores": self.head(self.table(input_ids))}


def not_causal() -> nn.Module:
    module = tiny("llama", layers=1)
    module.model.layers[0].self_attn.is_causal = False
    return module


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (NoTokens(), "must take input_ids; it takes ['position_ids']"),
        (DependsOnData(), "could not be traced"),
        (Counts(), "in place (aten.add_.Tensor)"),
        (CountsByLen(), "takes one of them for a fixed number"),
        (ReturnsDict(), "returns dict"),
        (not_causal(), "not causal"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_refusals_are_one_line(module: nn.Module, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        capture(module.eval(), name="mine")
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert type(module).__name__ in str(caught.value) or "LlamaAttention" in str(caught.value)


def capture_in_fresh_process(families: tuple[str, ...]) -> None:
    program = f"""
        import torch
        torch.set_num_threads(1)
        from tiny_models import tiny
        from flexspec.ir.capture import capture
        from flexspec.ir.ops import ATTENTION
        for family in {families}:
            print(family, len(capture(tiny(family, layers=1), name=family).nodes(ATTENTION)))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=300,
        env={"PATH": "", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [word for family in families for word in (family, "1")]


def test_capture_in_a_fresh_process() -> None:
    capture_in_fresh_process(("llama", "mistral", "opt", "gpt2"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral", "opt", "gpt2"])
def test_capture_in_a_process_of_its_own(family: str) -> None:
    capture_in_fresh_process((family,))


def test_a_graph_may_keep_the_module_s_own_parameters_in_their_dtype() -> None:
    module = tiny("opt").to(torch.bfloat16)
    own, converted = capture(module, name="opt", own_dtype=True), capture(module, name="opt")
    weights = {parameter.data_ptr() for parameter in module.parameters()}
    nodes = own.graph.find_nodes(op="get_attr")
    assert all(own.parameter(node).data_ptr() in weights for node in nodes)
    assert {fake(node).dtype for node in nodes} == {torch.float32}, "values are float32"
    assert [str(node) for node in own.graph.nodes] == [str(node) for node in converted.graph.nodes]
    assert own.facts == converted.facts
