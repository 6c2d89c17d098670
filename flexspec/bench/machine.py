"""What a measurement was taken on."""

import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("flexspec", "torch", "transformers", "numpy")


def describe_machine() -> dict[str, Any]:
    """Processor, cores this process may use, threads that models use, memory in bytes, system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _cpu_name(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
    }


def describe_versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Versions of Python and of the packages that were measured.

    Args:
        more: further packages, by the names they are installed under.
    """
    return {"python": platform.python_version()} | {name: _version(name) for name in (*_PACKAGES, *more)}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
