"""A function of the user's that changes logits."""

from collections.abc import Sequence

import numpy as np
import torch

from flexspec.config import LogitsProcessor
from flexspec.errors import UsageError
from flexspec.runtime.logit_rules.base import Float32


class Processor:
    """Calls a user's function and checks what it returns.

    The function always gets the LLM's vocabulary: tokens that a draft model lacks have minus infinity.

    Args:
        function: takes the text's token ids, drafted path included, and logits [vocab]; returns such logits.
        vocab_size: length of its logits.
    """

    def __init__(self, function: LogitsProcessor, *, vocab_size: int) -> None:
        self._function = function
        self._vocab_size = vocab_size
        self._tokens: list[int] = []

    def __str__(self) -> str:
        return f"logits processor {getattr(self._function, '__qualname__', None) or type(self._function).__qualname__!r}"

    def extend(self, tokens: Sequence[int]) -> None:
        """As `LogitRule.extend`."""
        self._tokens += tokens

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """As `LogitRule.apply`.

        Raises:
            UsageError: if the function raises, or does not return logits.
        """
        whole = np.full(self._vocab_size, -np.inf, dtype=np.float32)
        whole[: len(logits)] = logits
        try:
            changed = self._function([*self._tokens, *path], torch.from_numpy(whole))
        except Exception as error:  # it is the user's, and must not take other requests along
            raise UsageError(f"the {self} raised {type(error).__name__}: {error}") from error
        logits[:] = self._checked(changed)[: len(logits)]

    def _checked(self, changed: object) -> Float32:
        if not isinstance(changed, torch.Tensor):
            raise UsageError(f"the {self} returned {type(changed).__name__}: return the logits, a tensor of shape [{self._vocab_size}]")
        if changed.shape != (self._vocab_size,) or not changed.is_floating_point():
            kind = f"{changed.dtype} of shape {list(changed.shape)}".removeprefix("torch.")
            raise UsageError(f"the {self} returned {kind}: return floating-point logits of shape [{self._vocab_size}], as it is given")
        values: Float32 = changed.detach().float().cpu().numpy()
        if np.isnan(values).any() or np.isposinf(values).any():
            wrong = int(np.argmax(np.isnan(values) | np.isposinf(values)))
            raise UsageError(f"the {self} returned {values[wrong]} for token {wrong}: return finite logits, or -inf to ban a token")
        return values
