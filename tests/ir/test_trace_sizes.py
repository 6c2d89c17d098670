"""No size of a model is taken for the length of a text."""

import pytest
import torch
from torch import nn
from transformers import BloomConfig

from flexspec.ir.capture import capture
from flexspec.ir.trace_sizes import trace_sizes
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION
from graph_cases import graph_logits, prompt, reference_logits
from tiny_models import tiny_of


@pytest.mark.parametrize(("sizes", "expected"), [((8, 3), (7, 5)), ((40, 8), (11, 7)), ((35, 2 * 11 * 13, 0), (19, 17))])
def test_primes_that_divide_no_size(sizes: tuple[int, ...], expected: tuple[int, int]) -> None:
    module = nn.Module()
    module.table = nn.Parameter(torch.zeros(sizes))
    assert trace_sizes(module) == expected


def test_as_many_heads_as_a_short_text_has_tokens() -> None:
    """In a family that folds them into the batch."""
    module = tiny_of(BloomConfig(vocab_size=288, hidden_size=35, n_layer=1, n_head=5))
    model = capture(module, name="bloom")
    with torch.no_grad():
        run_passes(model, RECOGNITION)
    torch.testing.assert_close(graph_logits(model, prompt(9)), reference_logits(module, prompt(9)), atol=1e-4, rtol=1e-4)
