"""The list of kernel variants needs Triton, which not every platform has a build of."""

import importlib.util

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_variants.py"]
