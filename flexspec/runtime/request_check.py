"""Whether a request fits the engine it is given to, and an engine its model."""

from collections.abc import Collection, Sequence

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.request import Request


def check_request(prompt: Sequence[int], params: SamplingParams, *, max_len: int, vocab_size: int, has_tokenizer: bool) -> None:
    """Refuse what could not be served.

    Args:
        prompt: token ids.
        params: what is asked for.
        max_len: most tokens of a request, prompt and new tokens together.
        vocab_size: columns of the LLM's logits.
        has_tokenizer: whether there will be text.

    Raises:
        UsageError: if the prompt is empty, too long or not of this vocabulary, parameters name tokens that are not, or stop
            strings have no tokenizer.
    """
    if len(prompt) == 0:
        raise UsageError("the prompt is empty: give at least one token")
    if len(prompt) >= max_len:
        raise UsageError(f"a prompt of {len(prompt)} tokens is too long: at most {max_len - 1} leave room for one new token")
    _check_ids(prompt, "the prompt", vocab_size)
    _check_ids(params.logit_bias, "logit_bias", vocab_size)
    _check_ids(params.stop_token_ids, "stop_token_ids", vocab_size)
    if params.stop_strings and not has_tokenizer:
        raise UsageError(f"stop={list(params.stop_strings)} needs text, and this model has no tokenizer: give one, or leave out `stop`")


def check_single(params: SamplingParams, call: str) -> None:
    """Refuse several completions where one request makes one text.

    Raises:
        UsageError: if `n` is not 1.
    """
    if params.n != 1:
        raise UsageError(
            f"n={params.n} is not allowed in `{call}`, which makes one text: use `generate`, or call `{call}` {params.n} times with n=1"
        )


def check_sizes(model: CompiledModel, *, max_batch: int, max_len: int, pass_tokens: int) -> None:
    """Refuse an engine of sizes that do not fit its model or each other.

    Args:
        model: the compiled LLM.
        max_batch: most requests that run at once.
        max_len: most tokens of a request.
        pass_tokens: most tokens of a pass.

    Raises:
        UsageError: if they don't fit.
    """
    if not 1 <= pass_tokens <= model.max_pass_tokens:
        raise UsageError(f"pass_tokens={pass_tokens} is not allowed: give 1 to {model.max_pass_tokens}, the most this model takes at once")
    if not 1 <= max_batch <= pass_tokens:
        raise UsageError(f"max_batch={max_batch} is not allowed: give 1 to {pass_tokens}, the most tokens of one pass")
    if max_len < 2 or (model.max_positions is not None and max_len > model.max_positions):
        allowed = "2 or more" if model.max_positions is None else f"2 to {model.max_positions}, the positions of this model"
        raise UsageError(f"max_len={max_len} is not allowed: give {allowed}")


def find_mistake(requests: Sequence[Request]) -> UsageError | None:
    """What the user has to mend before one of the requests can go on."""
    return next((request.error for request in requests if isinstance(request.error, UsageError)), None)


def _check_ids(token_ids: Collection[int], where: str, vocab_size: int) -> None:
    if min(token_ids, default=0) < 0 or max(token_ids, default=0) >= vocab_size:
        wrong = next(token for token in token_ids if not 0 <= token < vocab_size)
        raise UsageError(f"token id {wrong} in {where} is not allowed: give 0 to {vocab_size - 1}")
