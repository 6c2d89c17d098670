"""What a module's structure makes passes expect."""

from dataclasses import replace

import pytest
import torch

from flexspec.ir.module_structure import expected_patterns
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION
from graph_cases import captured
from tiny_models import Family

EXPECTED = {
    "llama": {"rms_norm": 5, "gated_mlp": 2, "shared_linears": 10},
    "qwen3": {"rms_norm": 9, "gated_mlp": 2, "shared_linears": 10},
    "opt": {"rms_norm": 0, "gated_mlp": 0, "shared_linears": 6},
    "gpt2": {"rms_norm": 0, "gated_mlp": 0, "shared_linears": 0},
}


@pytest.mark.parametrize("family", EXPECTED)
def test_patterns_of_families(family: Family) -> None:
    module, model = captured(family)
    assert expected_patterns(module, model.module.buffers()) == EXPECTED[family] == model.facts.patterns


def test_parts_that_the_graph_does_not_read_count_for_nothing() -> None:
    module = captured("llama")[0]
    layer = set(module.model.layers[0].parameters())
    assert expected_patterns(module, [p for p in module.parameters() if p not in layer]) == {
        "rms_norm": 3,
        "gated_mlp": 1,
        "shared_linears": 5,
    }


@pytest.mark.parametrize("pattern", EXPECTED["llama"])
def test_what_a_pass_misses_is_noted(pattern: str) -> None:
    model = captured("llama")[1]
    patterns = dict(model.facts.patterns)
    model.facts = replace(model.facts, patterns=patterns | {pattern: patterns[pattern] + 1})
    with torch.no_grad():
        run_passes(model, RECOGNITION)
    missed = [note for note in model.notes if note.matches < note.expected]
    assert [(note.matches, note.expected) for note in missed] == [(patterns[pattern], patterns[pattern] + 1)]
