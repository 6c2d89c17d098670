"""The 8-bit type that a device's caches may have."""

import torch

from flexspec.codegen.cuda.targets import TARGETS


def cache_float8(device: torch.device) -> torch.dtype | None:
    """The type; None on a GPU that has none, or of a kind that kernels are not compiled for ahead of time.

    A CPU, where references run, has all.
    """
    if device.type != "cuda":
        return torch.float8_e4m3fn
    properties = torch.cuda.get_device_properties(device)
    name = f"sm_{properties.major}{properties.minor}"
    if torch.version.hip is not None:
        name = properties.gcnArchName.partition(":")[0]
    return next((target.cache_float8 for target in TARGETS if target.name == name), None)
