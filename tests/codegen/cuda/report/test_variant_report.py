"""A few variants compiled for each GPU, none of which is here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flexspec.codegen.cuda.kernels.kv_commit import kv_commit_variants
from flexspec.codegen.cuda.report.checks import failures
from flexspec.codegen.cuda.report.compile_ahead import compile_variant
from flexspec.codegen.cuda.report.variant_report import VariantReport, element_bytes
from flexspec.codegen.cuda.targets import TARGETS, find_target
from flexspec.errors import UsageError

Reports = dict[str, list[VariantReport]]


@pytest.fixture(scope="module")
def reports() -> Reports:
    """Of `compile_subset`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).parent / "compile_subset.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: [VariantReport.from_json(item) for item in items] for name, items in json.loads(done.stdout).items()}


def test_attention_in_16_bits_passes_every_check_on_every_gpu(reports: Reports) -> None:
    assert [report.target for report in reports["half"]] == [target.name for target in TARGETS]
    assert failures(reports["half"]) == []
    for report in reports["half"]:
        assert 0 < report.resources.registers <= (512 if report.target == "gfx942" else 255)
        assert report.resources.shared_bytes > 0


def test_matrix_units_are_each_gpus_own(reports: Reports) -> None:
    names = {report.target: "/".join(report.instructions.matrix_names) for report in reports["half"]}
    assert "MMA" in names["sm_80"] and "MMA" in names["sm_90"] and "MMA" in names["sm_100"]
    assert names["gfx942"].startswith("v_mfma_f32_")


def test_a_cache_of_8_bits_and_float32_pass_every_check(reports: Reports) -> None:
    assert failures([*reports["float8"], *reports["float32"]]) == []
    assert reports["float8"][0].element_types == ("bf16", "fp32", "fp8e4nv", "i32")


def test_without_the_launches_alignment_loads_are_narrow(reports: Reports) -> None:
    [report] = reports["unaligned"]
    message = f"gfx942: tree_attention ({report.case}) has 0 loads of 16 bytes, and a tile takes {report.tile_loads}"
    assert message in failures([report])


@pytest.mark.parametrize(("kind", "size"), [("*bf16", 2), ("*fp16", 2), ("*fp32", 4), ("*fp8e4nv", 1), ("*fp8e4b8", 1), ("*i64", 8)])
def test_sizes_of_elements(kind: str, size: int) -> None:
    assert element_bytes(kind) == size


def test_kernels_of_the_interpreter_are_refused() -> None:
    target = find_target("sm_90")
    with pytest.raises(UsageError, match="unset TRITON_INTERPRET"):
        compile_variant(kv_commit_variants(target)[0], target)
