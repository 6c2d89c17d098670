"""Draft models must mean the same by every token."""

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from flexspec.errors import UsageError
from flexspec.models import LoadedModel, check_same_tokenizer, load_model
from tiny_models import TINY_VOCAB, tiny, tiny_tokenizer


def _model(tokenizer: PreTrainedTokenizerFast | None, vocab: int = TINY_VOCAB) -> LoadedModel:
    return load_model(tiny("llama", layers=1, vocab=vocab), tokenizer=tokenizer)


def _swapped(first: int, second: int) -> PreTrainedTokenizerFast:
    """The tiny tokenizer with the texts of two ids exchanged."""
    tokenizer = tiny_tokenizer()
    one, other = tokenizer.convert_ids_to_tokens([first, second])
    state = tokenizer.backend_tokenizer.to_str()
    vocab = {**tokenizer.get_vocab(), one: second, other: first}
    backend = Tokenizer.from_str(state)
    backend.model = type(backend.model)(vocab=vocab, merges=[])
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("rows", [TINY_VOCAB, TINY_VOCAB + 128])
def test_the_same_tokenizer_with_other_padding(rows: int) -> None:
    check_same_tokenizer(_model(tiny_tokenizer()), _model(tiny_tokenizer(), rows))
    check_same_tokenizer(_model(tiny_tokenizer(), rows), _model(tiny_tokenizer()))


def test_tokens_that_only_one_has_do_not_matter() -> None:
    longer = tiny_tokenizer()
    longer.add_tokens(["<more>", "<still more>"])
    check_same_tokenizer(_model(tiny_tokenizer()), _model(longer, TINY_VOCAB + 2))


def test_permuted_ids_are_refused_naming_the_first() -> None:
    token, other = tiny_tokenizer().convert_ids_to_tokens([40, 90])
    with pytest.raises(UsageError) as caught:
        check_same_tokenizer(_model(tiny_tokenizer()), _model(_swapped(40, 90)))
    assert f"token 40 is {other!r} in the former and {token!r} in the latter" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("draft_has_one", [True, False])
def test_without_a_tokenizer_the_sizes_decide(draft_has_one: bool) -> None:
    tokenizer = tiny_tokenizer() if draft_has_one else None
    check_same_tokenizer(_model(None), _model(tokenizer))
    with pytest.raises(UsageError, match=rf"vocabulary of {TINY_VOCAB + 8} tokens and .* one of {TINY_VOCAB}"):
        check_same_tokenizer(_model(None), _model(tokenizer, TINY_VOCAB + 8))
