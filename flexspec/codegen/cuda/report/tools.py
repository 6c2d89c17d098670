"""NVIDIA's tools for binaries, which Triton's wheel brings along."""

import subprocess
import tempfile
from pathlib import Path

_TIMEOUT_S = 120


def resource_usage(cubin: bytes) -> str:
    """What `cuobjdump -res-usage` says of a cubin."""
    return _cuobjdump(cubin, "-res-usage")


def disassemble(cubin: bytes) -> str:
    """What `cuobjdump -sass` makes of a cubin."""
    return _cuobjdump(cubin, "-sass")


def _cuobjdump(cubin: bytes, option: str) -> str:
    from triton import knobs

    with tempfile.TemporaryDirectory(prefix="flexspec-cubin-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, option, str(path)]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL).stdout
