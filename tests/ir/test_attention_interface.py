"""What counts of a Hugging Face model's attention is the mask that each layer is given."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask, create_chunked_causal_mask, create_sliding_window_causal_mask
from transformers.models.llama import modeling_llama

from flexspec.errors import UsageError
from flexspec.ir.capture import capture
from flexspec.ir.ops import ATTENTION
from graph_cases import graph_logits, prompt, reference_logits
from tiny_models import tiny


def windows(module: nn.Module) -> list[object]:
    return [node.args[4] for node in capture(module, name="model").nodes(ATTENTION)]


def masked(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]) -> hf.PreTrainedModel:
    """A LLaMA whose layers say nothing of a window, with a mask of another kind."""
    module = tiny("llama", sliding_window=4, attention_chunk_size=4)
    monkeypatch.setattr(modeling_llama, "create_causal_mask", make)
    return module


def test_a_window_that_only_the_mask_shows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    module = masked(monkeypatch, create_sliding_window_causal_mask)
    model = capture(module, name="model")
    assert [node.args[4] for node in model.nodes(ATTENTION)] == [4, 4]
    torch.testing.assert_close(graph_logits(model, prompt(12)), reference_logits(module, prompt(12)), atol=2e-5, rtol=1e-5)


def test_a_window_that_the_mask_does_not_have_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    own = modeling_llama.ALL_ATTENTION_FUNCTIONS

    class Saying(dict):  # type: ignore[type-arg]
        def get_interface(self, *args: Any) -> Any:
            inner = own.get_interface(*args)
            return lambda *given, **options: inner(*given, **options | {"sliding_window": 3})

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Saying())
    assert windows(tiny("llama")) == [None, None]


def test_each_layer_has_its_own() -> None:
    types = ["full_attention", "sliding_attention"]
    module = tiny("qwen3", layers=2, layer_types=types, use_sliding_window=True, sliding_window=5, max_window_layers=0)
    assert windows(module) == [None, 5]


def _prefix(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key < 3


def _seeing_a_prefix(**options: Any) -> Any:
    return create_causal_mask(**options, or_mask_function=_prefix)


def _changed(**options: Any) -> Any:
    mask = create_causal_mask(**options)
    return None if mask is None else mask & True


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "chunks": (create_chunked_causal_mask, "neither causal nor a sliding window: queries up to index 4 see 1, 4 keys"),
    "prefix": (_seeing_a_prefix, "neither causal nor a sliding window: query 0 sees 2 keys"),
    "computed": (_changed, "changes its attention mask"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_masks_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, message = REFUSED[name]
    module = masked(monkeypatch, make)
    with pytest.raises(UsageError, match=rf"model model: LlamaAttention .*{message}.*what is supported is causal attention"):
        capture(module, name="model")


def test_llama4_is_refused_for_its_chunks() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "intermediate_size_mlp": 48, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 2, "pad_token_id": None}
    module = hf.Llama4ForCausalLM(hf.Llama4TextConfig(**sizes, **heads, attention_chunk_size=4)).eval()
    with pytest.raises(UsageError, match=r"neither causal nor a sliding window|Llama4TextAttention"):
        capture(module, name="llama4")
