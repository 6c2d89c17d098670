import shutil
import sys
from pathlib import Path

import pytest

from flexspec.codegen.cpu.native import NativeLibrary, NativeUnavailable, load_library
from flexspec.codegen.cpu.native.build import FLAGS

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def library() -> NativeLibrary:
    try:
        return load_library()
    except NativeUnavailable as error:
        pytest.skip(f"no native kernels here: {error}")


@pytest.fixture(scope="session")
def older_library() -> NativeLibrary:
    """Compiled for AVX2, so that machines with AVX-512 test that path too."""
    if shutil.which("g++") is None or "avx2" not in _cpu_flags():
        pytest.skip("needs g++ and an x86 CPU with AVX2")
    return load_library(flags=tuple("-march=x86-64-v3" if flag == "-march=native" else flag for flag in FLAGS))


def _cpu_flags() -> str:
    info = Path("/proc/cpuinfo")
    return info.read_text() if info.exists() else ""
