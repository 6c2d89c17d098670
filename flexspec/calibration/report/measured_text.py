"""The part of the page about what was measured."""

from collections.abc import Sequence
from statistics import mean

from flexspec.calibration.report.measured import Workload
from flexspec.calibration.report.priced import Form
from flexspec.calibration.report.statistics import Regret, rank_correlation, relative_errors
from flexspec.calibration.report.table import table

REGRET_BAR = 1.05
CORRELATION_BAR = 0.9


def summary(workloads: Sequence[Workload]) -> str:
    """A row for each model and batch, then what they come to."""
    rows = []
    for one in workloads:
        predicted, measured = _series(one)
        middle, largest = relative_errors(predicted, measured)
        rows.append(
            [
                one.title,
                str(one.choice),
                str(one.best),
                _regret(one.regret(one.choice)),
                f"{rank_correlation(predicted, measured):.3f}",
                f"{middle:.0%}, {largest:.0%}",
            ]
        )
    header = ["workload", "the search's choice", "fastest measured", "regret", "rank correlation", "error: median, largest"]
    return "\n".join([table(header, rows, words=3), "", *verdicts(workloads)])


def verdicts(workloads: Sequence[Workload]) -> list[str]:
    """The bars, and whether they are met."""
    regrets = [one.regret(one.choice).value for one in workloads]
    pairs = [_series(one) for one in workloads]
    each = [rank_correlation(*pair) for pair in pairs]
    together = rank_correlation([value for pair in pairs for value in pair[0]], [value for pair in pairs for value in pair[1]])
    optima = {one.best for one in workloads}
    return [
        f"- Regret of the choice: {max(regrets):.3f} at most (bar: {REGRET_BAR}; {_met(max(regrets) <= REGRET_BAR)}).",
        f"- Rank correlation of all {sum(len(one.times) for one in workloads)} strategies together: {together:.3f} "
        f"(bar: {CORRELATION_BAR}; {_met(together >= CORRELATION_BAR)}); within a workload {min(each):.3f} at least "
        f"({_met(min(each) >= CORRELATION_BAR)}).",
        f"- Different optima over the workloads: {len(optima)} ({'; '.join(map(str, sorted(optima)))}).",
    ]


def constants(workloads: Sequence[Workload]) -> str:
    """The regret of always taking the same strategy, beside that of the search's choice."""
    forms = sorted({form for one in workloads for form in one.times})
    found: list[tuple[float, list[str]]] = []
    for form in forms:
        values = [one.regret(form).value if form in one.times else None for one in workloads]
        worst = float("inf") if None in values else max(value for value in values if value is not None)
        cells = ["cannot be" if value is None else f"{value:.2f}" for value in values]
        found.append((worst, [f"always {form}", *cells, "cannot be" if worst == float("inf") else f"{worst:.2f}"]))
    found.sort(key=lambda one: one[0])
    chosen = [one.regret(one.choice).value for one in workloads]
    rows = [["the search's choice", *(f"{value:.2f}" for value in chosen), f"{max(chosen):.2f}"], *(cells for _, cells in found)]
    return table(["strategy", *(one.title for one in workloads), "worst"], rows, bold=[True])


def details(workload: Workload) -> str:
    """Every strategy of a workload, the fastest first."""
    rows, bold = [], []
    for form in sorted(workload.times, key=workload.measured_ms):
        predicted, measured = workload.predicted_ms(form), workload.measured_ms(form)
        predictions = [candidate.predicted for candidate in workload.predicted[form]]
        links = mean(one.parts.get("collectives", 0.0) + one.parts.get("messages", 0.0) for one in predictions)
        spread = [1e3 * one for one in workload.times[form]]
        rows.append(
            [
                str(form),
                f"{measured:.2f}",
                f"{min(spread):.2f}-{max(spread):.2f}",
                f"{predicted:.2f}",
                f"{predicted / measured - 1:+.0%}",
                _regret(workload.regret(form)),
                f"{predicted * predictions[0].tokens_per_step:.1f}",
                f"{links:.1f}",
                f"{mean(one.parts.get('host', 0.0) for one in predictions):.1f}",
            ]
        )
        bold.append(form == workload.choice)
    header = ["strategy", "measured", "range", "predicted", "error", "regret", "step, predicted", "links", "host"]
    return table(header, rows, bold=bold)


def _series(workload: Workload) -> tuple[list[float], list[float]]:
    forms: list[Form] = sorted(workload.times)
    return [workload.predicted_ms(form) for form in forms], [workload.measured_ms(form) for form in forms]


def _regret(regret: Regret) -> str:
    if regret.is_tie:
        return "tie" if regret.ratio.value != 1.0 else "1.00"
    return f"{regret.value:.2f}"


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"
