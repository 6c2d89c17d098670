"""Where models run, and how much of a GPU's memory their cache may take."""

import torch

from flexspec.codegen.kv_storage import KVShape
from flexspec.errors import UsageError

DEVICES = ("cpu", "cuda")

_MEMORY_SHARE = 0.9
"""Of the memory that is free once weights are there; the rest is for activations and captured passes."""


def find_device(name: str | None) -> torch.device:
    """The device called `name`; None is the CPU.

    Raises:
        UsageError: if there is no such device, or nothing can run on it.
    """
    if name is None or name == "cpu":
        return torch.device("cpu")
    if name != "cuda":
        raise UsageError(f"device={name!r} is not allowed: give one of {', '.join(DEVICES)}")
    if not torch.cuda.is_available():
        build = "was built without CUDA" if torch.version.cuda is None and torch.version.hip is None else "sees no GPU"
        raise UsageError(f"device='cuda' needs a GPU, and this PyTorch ({torch.__version__}) {build}: install one that does, or give 'cpu'")
    return torch.device("cuda", torch.cuda.current_device())


def affordable_slots(shape: KVShape, *, wanted: int) -> int:
    """How many of `wanted` slots of a KV cache fit into what is free of its GPU's memory."""
    free, _ = torch.cuda.mem_get_info(shape.device)
    return min(wanted, int(_MEMORY_SHARE * free) // shape.bytes_per_slot)
