import sys
from pathlib import Path

import pytest

from flexspec.codegen.cpu.native.build import NativeUnavailable
from flexspec.codegen.cpu.native.library import load_library

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["cpu-native", "cpu-torch"])
def target(request: pytest.FixtureRequest) -> str:
    """Each CPU target; the native one is left out where it can't be built."""
    name: str = request.param
    if name == "cpu-native":
        try:
            load_library()
        except NativeUnavailable as error:
            pytest.skip(f"no native kernels here: {error}")
    return name
