"""After every pass, the graph of every family still is the model."""

import pytest
import torch

from flexspec.errors import UsageError
from flexspec.ir.cost import count_operators
from flexspec.ir.graph import ModelGraph
from flexspec.ir.verify import verify
from flexspec.passes.manager import Recognised, run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from graph_cases import captured, graph_logits, prompt, reference_logits, served
from tiny_models import FAMILIES, Family

LENGTH = 13  # past Mistral's window of 8


@pytest.mark.parametrize("family", FAMILIES)
def test_every_pass_keeps_the_values(family: Family) -> None:
    module, model = captured(family)
    ids = prompt(LENGTH)
    expected = reference_logits(module, ids)
    done: list[str] = []

    def check(graph: ModelGraph) -> None:
        done.append(graph.notes[-1].name)
        verify(graph)
        torch.testing.assert_close(graph_logits(graph, ids), expected, atol=3e-5, rtol=1e-5, msg=lambda text: f"after {done[-1]}: {text}")

    with torch.no_grad():
        run_passes(model, RECOGNITION, after_each=check)
        verify(model, "recognised")
        run_passes(model, SERVING, after_each=check)
    verify(model, "serving")
    assert done == [one.__name__ for one in (*RECOGNITION, *SERVING)]


# Per layer: fused QKV and output projection, two matrices of the MLP (gate and up fused, where there is a gate).
EXPECTED: dict[Family, dict[str, int]] = {
    "llama": {"flexspec.rms_norm.default": 5, "flexspec.gated_activation.default": 2},
    "qwen2": {"flexspec.rms_norm.default": 5, "flexspec.gated_activation.default": 2},
    "qwen3": {"flexspec.rms_norm.default": 9, "flexspec.gated_activation.default": 2},
    "mistral": {"flexspec.rms_norm.default": 5, "flexspec.gated_activation.default": 2},
    "opt": {"aten.layer_norm.default": 5, "aten.relu.default": 2},
    "gpt2": {"aten.layer_norm.default": 5, "aten.gelu.default": 2},
}
LEFT_OVER = {
    "aten.linear.default",
    "aten.addmm.default",
    "aten.transpose.int",
    "aten.view.default",
    "aten.rsqrt.default",
    "aten.tanh.default",
    "aten.silu.default",
    "aten.neg.default",
    "flexspec.attention.default",
    "flexspec.rope.default",
}


@pytest.mark.parametrize("family", FAMILIES)
def test_final_graph_has_exactly_these_operators(family: Family) -> None:
    module = served(family)[1].module
    counts = count_operators(module)
    expected = EXPECTED[family] | {
        "flexspec.packed_linear.default": 9,
        "flexspec.tree_attention.default": 2,
        "aten.index_select.default": 1,
    }
    assert {name: counts[name] for name in expected} == expected
    assert not LEFT_OVER & counts.keys()
    assert [name for name, _ in module.named_children()] == ["block_0"]
    assert sum(node.op == "call_module" for node in module.graph.nodes) == 2


def test_the_notes_say_what_was_matched() -> None:
    notes = {note.name: (note.matches, note.expected) for note in served("qwen3")[1].notes}
    assert notes["recognise_norm"] == (9, 9)
    assert notes["recognise_rope"] == (4, 4)
    assert notes["recognise_gated_mlp"] == notes["lower_attention"] == notes["outline"] == (2, 2)
    assert notes["fuse_linears"] == (10, 10)
    assert notes["output_rows"] == (1, 1)
    assert notes["pack_linears"] == (9, 9)


def test_a_pass_that_finds_too_little_is_an_error() -> None:
    def finds_one_of_two(model: ModelGraph) -> tuple[int, int]:
        return 1, 2

    model = captured("llama")[1]
    with pytest.raises(UsageError, match="model llama: pass finds_one_of_two matched 1 of 2 places"):
        run_passes(model, (finds_one_of_two,))
    assert model.notes[-1].matches == 1


def test_what_only_a_faster_form_is_missed_for_is_noted() -> None:
    model = captured("llama")[1]
    run_passes(model, (lambda model: Recognised(1, 2),))
    assert (model.notes[-1].matches, model.notes[-1].expected) == (1, 2)


@pytest.mark.parametrize(
    ("family", "overrides"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
        ("llama", {"head_dim": 6, "num_key_value_heads": 1, "hidden_size": 20}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}}),
        ("llama", {"num_hidden_layers": 1, "hidden_act": "gelu"}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
        ("opt", {"do_layer_norm_before": False, "enable_bias": False}),
        ("opt", {"word_embed_proj_dim": 16, "num_hidden_layers": 1}),
        ("gpt2", {"activation_function": "relu", "tie_word_embeddings": True}),
    ],
    ids=str,
)
def test_variants(family: Family, overrides: dict[str, object]) -> None:
    hashable = {name: value for name, value in overrides.items() if not isinstance(value, dict)}
    if hashable == overrides:
        module, model = served(family, **overrides)
    else:
        from flexspec.ir.capture import capture
        from tiny_models import tiny

        module = tiny(family, **overrides)
        model = capture(module, name=family)
        with torch.no_grad():
            run_passes(model, (*RECOGNITION, *SERVING))
    verify(model, "serving")
    torch.testing.assert_close(graph_logits(model, prompt(9)), reference_logits(module, prompt(9)), atol=5e-5, rtol=1e-5)
