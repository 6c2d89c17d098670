"""Verifiers compared, as a table."""

import io
from typing import Any

from rich.console import Console

from flexspec.bench.contenders import ComparisonConfig
from flexspec.bench.statistics import Ratio
from flexspec.bench.verifier_comparison import ComparisonResult, ComparisonRow
from flexspec.bench.verifier_table import verifier_table
from flexspec.tree_shape import TreeSpec

LLM_OF_NONE: Any = None
RATIO = Ratio(value=1.5, low=1.25, high=1.75)


def test_verifiers_in_the_papers_order() -> None:
    config = ComparisonConfig(model="m", tree="2,1", temperatures=[1.0], ssms=["ngram"])
    rows = [
        ComparisonRow(
            temperature=1.0,
            contender=str(one),
            verifier=one.verifier,
            tokens_per_step=RATIO,
            drafted_per_step=3.0,
            acceptance=Ratio(value=0.15, low=0.125, high=0.175),
            ratio=RATIO,
            over_naive=None if one.alpha == 0 else Ratio(value=1.1, low=1.0, high=1.2),
            learned_alphas={"prune:26": 1.5, "head": 0.6} if str(one).endswith("learned") else {},
            drafted=100,
            accepted=15,
            tokens=100,
        )
        for one in config.contenders()
    ]
    tree = TreeSpec(widths=(2, 1))
    out = io.StringIO()
    result = ComparisonResult(llm=LLM_OF_NONE, tree=tree, reference="r", prompts=2, settings={}, rows=rows)
    Console(file=out, width=80).print(verifier_table(result))
    text = out.getvalue()
    assert "…" not in text
    names = ["naive sampling", "point_mass", "mss", "without_replacement", "traversal", "coupled, alpha 0.5", "coupled, alpha 1"]
    first_cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert [cell for cell in first_cells if cell] == [
        "temperature 1",
        *names,
        "coupled, alpha",
        "learned: 1.5, 0.6",
        "Miao et al. 2024",
        "naive sampling",
        "mss",
    ]
    assert text.count("1.00\N{EN DASH}1.20") == 7 and "1.27\N{EN DASH}1.28" in text and "12.5\N{EN DASH}17.5%" in text
    assert "trees ⟨1,1,5,1,1,1,1,1⟩" in " ".join(text.split())
