"""What changes the logits at a node before a token is chosen there."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]


class LogitRule(Protocol):
    """Belongs to one request, and is a pure function of the text before a node and of the logits there.

    The text is what `extend` was given plus the drafted path to the node, so that trees need no states to be rolled back.

    `str` of it names it, with its value, in messages.
    """

    def extend(self, tokens: Sequence[int]) -> None:
        """The text grew by `tokens`, which are final; the prompt is the first call."""
        ...

    def apply(self, logits: Float32, path: Sequence[int]) -> None:
        """Change `logits` in place.

        Args:
            logits: [vocab], padding ids left out; some may be minus infinity. A draft model's vocabulary may be a little larger or
                smaller.
            path: the drafted tokens between the text and the token that is to be chosen.
        """
        ...
