"""Tests of reports on kernels need Triton, which not every platform has a build of."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
