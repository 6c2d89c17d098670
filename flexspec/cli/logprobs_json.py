"""Log probabilities as JSON has them."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexspec.runtime.logprobs import TokenLogprobs


def logprobs_json(entries: "Sequence[TokenLogprobs | None] | None") -> list[dict[str, Any] | None] | None:
    """An object a token, with `top` as pairs, likeliest first; null for the log probability of what is impossible."""
    if entries is None:
        return None
    return [None if entry is None else _object(entry) for entry in entries]


def _object(entry: "TokenLogprobs") -> dict[str, Any]:
    logprob = entry.logprob if math.isfinite(entry.logprob) else None
    return {"token_id": entry.token_id, "logprob": logprob, "top": list(entry.top.items())}
