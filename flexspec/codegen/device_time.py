"""How long a device took, without waiting for it in between."""

from time import perf_counter
from typing import Any

import torch


class DeviceMoment:
    """When a device has done all that it was given before.

    Args:
        device: whichever; a CPU has always done it.
    """

    def __init__(self, device: torch.device) -> None:
        self._event: Any = None
        if device.type == "cuda":
            new_event: Any = torch.cuda.Event  # untyped in PyTorch
            self._event = new_event(enable_timing=True)
            self._event.record(torch.cuda.current_stream(device))
        self._time = perf_counter()

    def seconds_until(self, later: "DeviceMoment") -> float:
        """From this moment to a later one, once the device is past both."""
        if self._event is None:
            return later._time - self._time
        return float(self._event.elapsed_time(later._event)) / 1e3
