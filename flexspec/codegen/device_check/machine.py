"""What a check was run on, and with."""

import shutil
import subprocess
from typing import Any

import torch

from flexspec.bench.machine import describe_machine, describe_versions

_QUERY_S = 10.0


def machine_facts(device: torch.device) -> dict[str, Any]:
    """Names and versions; the GPU's are None in a dry run."""
    facts: dict[str, Any] = {
        "gpu": None,
        "capability": None,
        "multiprocessors": None,
        "memory_bytes": None,
        "l2_bytes": None,
        "driver": None,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "host": describe_machine(),
        "versions": describe_versions(["triton"]),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts |= {
            "gpu": torch.cuda.get_device_name(device),
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": properties.L2_cache_size,
            "driver": _driver(),
        }
    return facts


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return said.splitlines()[0].strip() if said.strip() else "unknown"
