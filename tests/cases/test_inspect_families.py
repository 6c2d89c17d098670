"""`flexspec inspect` of every family: what was recognised, and what stayed generic."""

from pathlib import Path

import pytest

from family_models import FAMILIES, family
from flexspec.cli.main import main


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "mpt" else pytest.mark.slow) for name in FAMILIES])
def test_every_family_can_be_inspected(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = family(name)
    module.save_pretrained(tmp_path)
    capsys.readouterr()
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    words = " ".join(shown.out.split())
    generic = words.split("stayed generic:")[1]
    assert "flexspec.tree_attention.default" in words and "aten." in generic and "flexspec." not in generic
    layers = str(module.config.num_hidden_layers)
    (row,) = [line.split("│")[1:4] for line in shown.out.splitlines() if "lower_attention" in line]
    assert [cell.strip() for cell in row] == ["lower_attention", layers, layers]
    assert "aten.scaled_dot_product_attention" not in generic
    assert "Traceback" not in shown.out + shown.err
