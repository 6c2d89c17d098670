"""Bytes of a device: equation 8, in parts."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flexspec.passes.search.divisions import Division
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.records import ModelRecord
from flexspec.passes.search.space import Workload
from flexspec.passes.search.stages import Floats

_LEFT_FREE = 0.1
"""Share of a device's memory that nothing is planned for: the driver's own, code, what an allocator can't use."""
_PAGE = 16
"""Slots of a page of a paged KV cache."""
_PREFILL_TOKENS = 512
"""Of the largest pass that warm-up prepares: prompts are taken in by chunks of that."""
LOGIT_BYTES = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class OtherMemory:
    """[requests, sizes] bytes of what stages have besides layers.

    Attributes:
        embedding: of the first stage.
        head: of the last one.
        logits: of the last one.
        activations: of any, the largest operator's inputs and results.
        buffers: of any, what ranks send and receive.
    """

    embedding: Floats
    head: Floats
    logits: Floats
    activations: Floats
    buffers: Floats


def room(hardware: Hardware) -> float:
    """Bytes of the smallest device that can be planned for."""
    return (1.0 - _LEFT_FREE) * 1e9 * min(device.memory_gb for device in hardware.devices)


def kv_slots(workload: Workload, tree_size: int) -> int:
    """Slots that a request takes in a KV cache at its end, a tree and its root included."""
    return -(-(workload.length + tree_size + 1) // _PAGE) * _PAGE


def kv_bytes(*, kv_heads: int, head_dim: int, slots: Any, requests: Any, element_bytes: int) -> Any:
    """Keys and values of one layer; numbers for numbers of slots and requests, arrays for arrays."""
    return 2.0 * kv_heads * head_dim * slots * requests * element_bytes


def other_memory(
    model: ModelRecord,
    way: Division,
    *,
    tokens: NDArray[np.int64],
    pp: int,
    element_bytes: int,
    activation_bytes: int,
    context: int,
) -> OtherMemory:
    """What stages have besides layers.

    Args:
        model: what is divided.
        way: how.
        tokens: [requests, sizes] of the passes; a chunk of a prompt counts where it is larger.
        pp: stages; with several the residual stream is received and sent, and a tied matrix is there twice.
        element_bytes: of a weight.
        activation_bytes: of an element of an activation.
        context: length of the prompt.
    """
    is_shared = model.tied and pp == 1 and not way.embedding.is_divided and not way.head.is_divided
    head = way.head.weights - (model.embedding.operators[0].weights[0] if is_shared else 0)
    columns = max(work.in_columns + work.out_columns for place in (*way.blocks.values(), way.embedding) for work in place.works)
    rows = np.maximum(tokens, min(context, _PREFILL_TOKENS)).astype(float)
    # Summands of all ranks are gathered and then added.
    copies = (way.tp if way.tp > 1 else 0) + (2 if pp > 1 else 0)
    logits = way.head.works[-1].out_columns + (model.vocab_size if way.tp > 1 else 0)
    return OtherMemory(
        embedding=np.full(tokens.shape, float((way.embedding.weights + model.position_weights) * element_bytes)),
        head=np.full(tokens.shape, float(head * element_bytes)),
        logits=tokens.astype(float) * (logits * LOGIT_BYTES),
        activations=rows * (columns * activation_bytes),
        buffers=rows * (model.hidden * activation_bytes * copies),
    )
