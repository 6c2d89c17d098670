"""Proof by trial that a module is a causal language model."""

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flexspec.errors import FORWARD_ERRORS, UsageError
from flexspec.ir.logits import logits_of

PROBE_TOKENS = 6
_ROUNDING = 2e-5


def checked_vocab_size(name: str, module: nn.Module) -> int:
    """The number of logits that `module` gives for a token, once it has shown that no token sees a later one.

    The module runs on a few tokens twice, the last one changed: all earlier rows must stay the same. That finds encoders whatever they
    are called; some load as language models without a word.

    Raises:
        UsageError: if the module does not run on token ids, gives no logits for each token, is random, or looks ahead.
    """
    ids = torch.arange(PROBE_TOKENS).remainder(2)[None]  # [1, tokens], of the only two ids that every vocabulary has
    changed = ids.clone()
    changed[0, -1] = 1 - changed[0, -1]
    with _one_thread():
        before, after = _logits(name, module, ids), _logits(name, module, changed)
    # Experts round otherwise where other tokens share them.
    tolerance = max(4 * torch.finfo(before.dtype).eps, _ROUNDING) * before.abs().max()
    if bool(((before - after)[:, :-1].abs() > tolerance).any()):
        if not torch.equal(_logits(name, module, ids), before):
            raise UsageError(
                f"model {name} ({type(module).__name__}) gives other logits each time it runs on the same tokens: part of it is random; "
                "call its .eval(), and take out what stays random"
            )
        raise _not_a_decoder(name, module, "its tokens see later ones, as an encoder's do")
    return int(before.shape[-1])


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    # Six rows gain nothing from more, and on a busy machine threads that wait for each other made 0.3 s into 15 s.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _logits(name: str, module: nn.Module, ids: Tensor) -> Tensor:
    """[1, tokens, vocabulary]"""
    accepted = inspect.signature(module.forward).parameters
    options: dict[str, Any] = {}
    if "position_ids" in accepted:
        options["position_ids"] = torch.arange(ids.shape[1])[None]
    if "use_cache" in accepted:
        options["use_cache"] = False
    try:
        with torch.no_grad():
            output = module(ids, **options)
    except FORWARD_ERRORS as error:
        raise _not_a_decoder(name, module, f"forward(input_ids, position_ids) failed with {first_line(error)}") from error
    logits = logits_of(output)
    if not isinstance(logits, Tensor) or logits.dim() != 3 or logits.shape[:2] != ids.shape or not logits.is_floating_point():
        raise _not_a_decoder(name, module, "forward gives no logits of shape [batch, tokens, vocabulary]")
    return logits


def first_line(error: Exception) -> str:
    """What kind of error it is and the first line of its message, for messages that must fit on one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _not_a_decoder(name: str, module: nn.Module, reason: str) -> UsageError:
    return UsageError(
        f"model {name} ({type(module).__name__}) is not a decoder-only language model: {reason}; "
        "give one, such as LlamaForCausalLM, Qwen3ForCausalLM or GPT2LMHeadModel"
    )
