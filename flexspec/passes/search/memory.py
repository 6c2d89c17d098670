"""Bytes of a device: equation 8, in parts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.space import Workload
from flexspec.passes.search.stages import Floats

_LEFT_FREE = 0.1
"""Share of a device's memory that nothing is planned for: the driver's own, code, what an allocator can't use."""
_PAGE = 16
"""Slots of a page of a paged KV cache."""
_PREFILL_TOKENS = 512
"""Of the largest pass that warm-up prepares: prompts are taken in by chunks of that."""
_LOGIT_BYTES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class PassMemory:
    """What passes need for a while, whatever layers a device has.

    Attributes:
        activations: [sizes] bytes of the largest operator's inputs and results.
        buffers: [sizes] bytes of what ranks send and receive.
    """

    activations: Floats
    buffers: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class EndMemory:
    """[sizes] bytes of what the first and the last stage have besides layers: the embedding, the head, and the logits."""

    embedding: Floats
    head: Floats
    logits: Floats


def room(hardware: Hardware) -> float:
    """Bytes of the smallest device that can be planned for."""
    return (1.0 - _LEFT_FREE) * 1e9 * min(device.memory_gb for device in hardware.devices)


def kv_slots(workload: Workload, tree_size: int) -> int:
    """Slots that a request takes in a KV cache at its end, a tree and its root included."""
    return -(-(workload.length + tree_size + 1) // _PAGE) * _PAGE


def kv_bytes(*, kv_heads: int, head_dim: int, slots: Any, requests: int, element_bytes: int) -> Any:
    """Keys and values of one layer; a number for a number of slots, an array for an array."""
    return 2.0 * kv_heads * head_dim * slots * requests * element_bytes


def pass_memory(
    *, tokens: NDArray[np.int64], columns: int, hidden: int, tp: int, pp: int, element_bytes: int, context: int
) -> PassMemory:
    """Of passes over so many tokens, or of a chunk of a prompt if that is larger.

    Args:
        tokens: [sizes] of the passes.
        columns: of the widest operator on a device, inputs and results together.
        hidden: columns of the residual stream.
        tp: ranks that gather their summands to add them up.
        pp: stages; with several the residual stream is received and sent.
        element_bytes: of an activation.
        context: length of the prompt.
    """
    rows = np.maximum(tokens, min(context, _PREFILL_TOKENS)).astype(float)
    copies = (tp if tp > 1 else 0) + (2 if pp > 1 else 0)
    return PassMemory(activations=rows * (columns * element_bytes), buffers=rows * (hidden * element_bytes * copies))


def logit_bytes(*, rows: NDArray[np.int64], columns: int, vocabulary: int, tp: int) -> Floats:
    """[sizes] of the logits of verified rows: a device's columns, and on a divided head all of them, gathered."""
    return rows.astype(float) * ((columns + (vocabulary if tp > 1 else 0)) * _LOGIT_BYTES)
