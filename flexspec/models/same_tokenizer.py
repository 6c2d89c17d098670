"""Whether a draft model speaks the language model's tokens."""

from flexspec.errors import UsageError
from flexspec.models.loaded_model import LoadedModel


def check_same_tokenizer(llm: LoadedModel, ssm: LoadedModel) -> None:
    """Passes if every token id that both models have means the same text in both.

    Either may have more rows than the other (padding, tokens added later). Without two tokenizers the vocabulary sizes must be equal.

    Raises:
        UsageError: naming the first id that differs, with its two texts, or the two sizes.
    """
    if llm.tokenizer is None or ssm.tokenizer is None:
        if llm.vocab_size != ssm.vocab_size:
            raise UsageError(
                f"draft model {ssm.name} has a vocabulary of {ssm.vocab_size} tokens and {llm.name} one of {llm.vocab_size}: without "
                "a tokenizer for both they must be equal; give a draft model with the same vocabulary, or both tokenizers"
            )
        return
    ours = {token_id: token for token, token_id in llm.tokenizer.get_vocab().items()}
    theirs = {token_id: token for token, token_id in ssm.tokenizer.get_vocab().items()}
    for token_id in sorted(ours.keys() & theirs.keys()):
        if ours[token_id] != theirs[token_id]:
            raise UsageError(
                f"draft model {ssm.name} has another tokenizer than {llm.name}: token {token_id} is {theirs[token_id]!r} in the former "
                f"and {ours[token_id]!r} in the latter; give a draft model that was trained with the same tokenizer"
            )
