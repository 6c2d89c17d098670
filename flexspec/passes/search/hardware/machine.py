"""What tells this machine from others, as far as measured times go."""

import os
import platform
from pathlib import Path


def this_machine() -> dict[str, str | int]:
    """Its processor, and how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {"cpu": _cpu_name(), "cores": len(affinity(0)) if affinity else os.cpu_count() or 1}


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
