"""Faults put into the kernels one at a time, each of which the kernel's tests must notice."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import flexspec

TESTS = Path(__file__).parent
REPOSITORY = TESTS.parents[3]

# What replaces what, in files of kernels, by the tests that know it.
FAULTS = {
    ("test_tree_attention.py", "tree_attention_kernel.py"): {
        "tail mask off by one": (
            "num_words, first_key - tail_start)\n            if",
            "num_words, first_key - tail_start + 1)\n            if",
        ),
        "context off by one": ("key_slot[None, :] < context", "key_slot[None, :] <= context"),
        "whole blocks off by one": ("num_keys)) // BLOCK_N", "num_keys) + 1) // BLOCK_N"),
        "no soft cap": ("if softcap > 0:", "if softcap < 0:"),
        "window off by one": ("rows=(position, position - window + 1,", "rows=(position, position - window,"),
        "window by slots": ("tail_start + below)", "key_position)"),
        "page boundary off by one": ("(key_slot >> block_shift)", "((key_slot + 1) >> block_shift)"),
        "a sink in every split": ("tl.where(split == 0, num_sinks, 0)", "num_sinks"),
        "values of another head": ("values + kv_head * padded_dim", "values"),
        "8-bit values not scaled": (
            "(tl.load(v_scales + kv_head, mask=kv_head < num_scales, other=1.0) / safe_total)",
            "(1.0 / safe_total)",
        ),
        "padding written": ("tl.load(slots + token) >= 0\n", "tl.load(slots + token) >= -1\n"),
        "keys beyond the splits": (
            "tl.cdiv(last_block - first_block, tl.num_programs(2))",
            "(last_block - first_block) // tl.num_programs(2)",
        ),
    },
    ("test_tree_attention.py", "tail_mask.py"): {"tail cut at a word": ("(first_bit >> 5) + 1, num_words)", "(first_bit >> 5) + 1, 0)")},
    ("test_tree_attention.py", "combine_splits.py"): {"no reduction of splits": (">= 0, splits, 0)", ">= 0, 1, 0)")},
    ("test_combine_splits.py", "combine_splits.py"): {"what no split wrote": ('(sums > -float("inf"))', "(sums == sums)")},
    ("test_kv_commit.py", "kv_commit.py"): {
        "padding moved": ("(source >= 0) & (destination >= 0)", "(destination >= 0)"),
        "a batch too few": ("range(0, num_moves, MOVES)", "range(0, num_moves - MOVES, MOVES)"),
    },
    ("test_draft_top.py", "draft_top_kernel.py"): {"highest id among equals": ("(places == first + place, -float", "(key == best, -float")},
    ("test_draft_level.py", "draft_level.py"): {
        "a child too many": ("(num_better < budget)", "(num_better <= budget)"),
        "a bit in the next word": ("place // 32 == word", "place // 32 + 1 == word"),
    },
}
MUTANTS = [(*files, *change) for files, changes in FAULTS.items() for change in changes.values()]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package, which Python imports if it is started there."""

    def no_code(folder: str, names: Sequence[str]) -> list[str]:
        return [name for name in names if not name.endswith(".py") and not Path(folder, name).is_dir()]

    root = tmp_path_factory.mktemp("mutants")
    shutil.copytree(Path(flexspec.__file__).parent, root / "flexspec", ignore=no_code)
    return root


def passes(copy: Path, tests: str) -> bool:
    """Whether the tests of examples do; random ones would look for a smaller example of a fault."""
    command = (*("-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"), "-c", REPOSITORY / "pyproject.toml")
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = [sys.executable, *command, "-k", "not root_path", TESTS / tests]
    status = subprocess.run(arguments, cwd=copy, env=environment, capture_output=True, check=False).returncode
    assert status in (0, 1) or status < 0, f"no tests were run: {status}"  # reading what isn't there may be the end of the process
    return status == 0


@pytest.mark.slow
@pytest.mark.parametrize("tests", sorted({tests for tests, _ in FAULTS}))
def test_without_a_fault_all_is_well(copy: Path, tests: str) -> None:
    assert passes(copy, tests)


@pytest.mark.slow
@pytest.mark.parametrize(("tests", "file", "right", "wrong"), MUTANTS, ids=[fault for changes in FAULTS.values() for fault in changes])
def test_a_fault_is_noticed(copy: Path, tests: str, file: str, right: str, wrong: str) -> None:
    path = copy / "flexspec" / "codegen" / "cuda" / "kernels" / file
    source = path.read_text()
    assert source.count(right) == 1, f"{file} has changed: {source.count(right)} times {right!r}"
    path.write_text(source.replace(right, wrong))
    try:
        assert not passes(copy, tests)
    finally:
        path.write_text(source)
