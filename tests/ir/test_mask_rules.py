"""Rules of masks with a known meaning, and ones that have none."""

import pytest
import torch
from torch import Tensor
from transformers import masking_utils as hf

from flexspec.ir.mask_rules import NotUnderstood, Rule, window_of

PADDING = torch.zeros(2, dtype=torch.int64)


def sliding(window: int) -> Rule:
    return hf.sliding_window_causal_mask_function(window)


@pytest.mark.parametrize("window", [1, 8, 69, 70, 71, 4096, 4097, 100_000])
def test_windows_of_any_size_are_seen(window: int) -> None:
    assert window_of(sliding(window), None) == window
    assert window_of(sliding(window), window + 1) == window
    assert window_of(sliding(window), window) is None, "no text is longer"


def test_causal() -> None:
    assert window_of(hf.causal_mask_function, None) is None and window_of(hf.causal_mask_function, 1) is None


def _prefix(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) | (key < 5)


def _by_row(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & (query - key < 4 + batch)


def _by_head(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & ((head == 0) | (query - key < 5))


def _odd_somewhere(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return (key <= query) & ((query < 5000) | (query > 7000) | (key > 2))


def _of_a_text(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return torch.ones(6, 6, dtype=torch.bool).tril()[query, key]


NOT_UNDERSTOOD: dict[str, tuple[Rule, str]] = {
    "chunks": (hf.chunked_causal_mask_function(8, PADDING), "queries up to index 8 see 1, 8 keys"),
    "long chunks": (hf.chunked_causal_mask_function(8192, PADDING), "queries up to index 8,192 see"),
    "prefix": (_prefix, "query 0 sees 2 keys"),
    "sees all": (hf.bidirectional_mask_function, "query 0 sees 2 keys"),
    "rows of a batch apart": (_by_row, "query 4 does not see the same keys in every row"),
    "heads apart": (_by_head, "query 5 does not see the same keys in every row of a batch and with every head"),
    "odd between powers of two": (_odd_somewhere, "keys"),
    "blocks of one text": (_of_a_text, "can't be computed from indices alone"),
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_shown(name: str) -> None:
    rule, message = NOT_UNDERSTOOD[name]
    with pytest.raises(NotUnderstood, match=message):
        window_of(rule, None, heads=4)
