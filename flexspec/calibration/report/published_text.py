"""The part of the page about the paper's configurations."""

from collections.abc import Sequence

from flexspec.calibration.report.published import (
    BATCHES,
    PAPER_RATIOS,
    PAPER_TREE,
    Configuration,
    configurations,
    counted_and_modelled,
    found,
    rank_chances,
    records,
    with_paper_tree,
)
from flexspec.calibration.report.table import table
from flexspec.parallel import OWN_DEVICE
from flexspec.passes.search.result import Candidate, SearchResult

_HEADER = (
    *("configuration", "batch", "choice", "tree", "tokens a step", "step", "of it drafting", "ms a token", "incremental", "ratio"),
    "ratio with the paper's tree",
)


def published_table(batches: Sequence[int] = BATCHES) -> str:
    """A row for each of the paper's configurations and batches."""
    rows = []
    for configuration in configurations():
        known = records(configuration)
        for batch in batches:
            rows.append(_row(configuration, batch, found(known, batch), with_paper_tree(known, batch)))
    return table(_HEADER, rows, words=4)


def acceptance_table() -> str:
    """What is taken for the drafters' acceptance, beside what the paper counted."""
    chances = rank_chances()
    rows = [
        [f"⟨{','.join(str(k if width > 1 else width) for width in PAPER_TREE)}⟩", f"{counted:.2f}", f"{modelled:.2f}"]
        for k, counted, modelled in counted_and_modelled(chances)
    ]
    ranks = ", ".join(f"{chance:.3f}" for chance in chances)
    return f"P(accepted | parent accepted) by rank: {ranks}; beyond, 0.\n\n" + table(["tree", "paper", "modelled"], rows)


def paper_range() -> str:
    """The paper's measured speed-ups."""
    return f"{PAPER_RATIOS[0]}-{PAPER_RATIOS[1]}x"


def _row(configuration: Configuration, batch: int, result: SearchResult, paper_ms: float) -> list[str]:
    best, plain = result.choice, result.incremental
    assert plain is not None
    predicted = best.predicted
    return [
        configuration.title if batch == BATCHES[0] else "",
        str(batch),
        _plan(best),
        _tree(best),
        f"{predicted.tokens_per_step:.2f}",
        f"{predicted.step_ms:.1f}",
        f"{predicted.parts.get('drafting', 0.0):.1f}",
        f"{predicted.ms_per_token:.1f}",
        f"{plain.predicted.ms_per_token:.1f} ({_plan(plain)})",
        f"{plain.predicted.ms_per_token / predicted.ms_per_token:.2f}x",
        f"{plain.predicted.ms_per_token / paper_ms:.2f}x",
    ]


def _plan(candidate: Candidate) -> str:
    plan = candidate.strategy.parallel
    degrees = [f"{name} {value}" for name, value in (("DP", plan.dp), ("PP", plan.pp), ("TP", plan.tp)) if value > 1]
    apart = ["SSM apart"] if OWN_DEVICE in plan.placement.values() else []
    flight = [f"{plan.micro_batches} in flight"] if plan.micro_batches > 1 else []
    return ", ".join([" x ".join(degrees) or "1 device", *flight, *apart])


def _tree(candidate: Candidate) -> str:
    tree = candidate.strategy.tree
    return f"{tree.num_nodes} nodes, {tree.depth} deep" if tree.num_nodes else "none"
