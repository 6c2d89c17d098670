"""What came of a compiled model's work, as text for `explain`."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from flexspec.runtime.draft_counts import DraftCount
from flexspec.runtime.engine_statistics import AdaptationStatistics, EngineStatistics


@runtime_checkable
class HasAlpha(Protocol):
    """A drafter that couples its draws with the request's noise, and how much."""

    name: str
    alpha: float


def describe_statistics(statistics: EngineStatistics, alphas: Mapping[str, float]) -> str:
    """Lines of figures: requests, tokens, time, drafts, and what adaptive trees go by.

    Args:
        statistics: of an engine.
        alphas: of the drafters that couple their draws.
    """
    profile = statistics.profile
    speed = f", {statistics.new_tokens / profile.total_s:.1f} tokens/s" if profile.total_s else ""
    now = f"{statistics.running} running, {statistics.waiting} waiting" if statistics.running or statistics.waiting else "none now"
    lines = [
        f"requests   {statistics.finished} finished, {statistics.aborted} aborted, {statistics.failed} failed, {now}",
        f"tokens     {statistics.new_tokens} in {profile.steps} passes{speed}; {statistics.tokens_per_step:.2f} a request and step",
        f"KV cache   {statistics.kv_tokens} of {statistics.kv_capacity} tokens in use"
        + (f", {statistics.preemptions} preemptions" if statistics.preemptions else ""),
        "time       ms/step: " + ", ".join(f"{phase} {milliseconds:.2f}" for phase, milliseconds in profile.per_step_ms().items()),
        f"drafts     {statistics.accepted} of {statistics.drafted} accepted"
        + (f" ({statistics.acceptance_rate:.1%})" if statistics.drafted else ""),
    ]
    counts = statistics.acceptance
    if statistics.drafted:
        lines += _table("depth", {str(depth): count for depth, count in counts.by_depth().items()})
        lines += _table("rank", {str(rank): count for rank, count in counts.by_rank().items()})
        lines += _table("drafter", counts.by_drafter())
        lines.append(_LEGEND)
    if statistics.adaptation is not None:
        lines += _describe_adaptation(statistics.adaptation)
    if alphas:
        lines.append("coupling   " + ", ".join(f"{name} alpha {alpha:.2f}" for name, alpha in alphas.items()))
    return "\n".join(lines)


_COLUMNS = ("drafted", "tried", "accepted", "of drafted", "of tried", "per step")
_LEGEND = (
    "columns    tried: nodes whose parent was accepted; of tried: the share of these that was accepted; "
    "per step: nodes accepted by a step that tried any"
)
_NONE = "\N{EN DASH}"
"""A share of nothing."""


def _table(kind: str, counts: Mapping[str, DraftCount]) -> list[str]:
    rows: list[Sequence[str]] = [(kind, *_COLUMNS)]
    for name, count in counts.items():
        rates = (
            f"{count.acceptance_rate:.1%}" if count.drafted else _NONE,
            f"{count.acceptance_if_tried:.1%}" if count.tried else _NONE,
            f"{count.accepted_per_step:.3f}" if count.steps else _NONE,
        )
        rows.append((name, str(count.drafted), str(count.tried), str(count.accepted), *rates))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = max(widths[0], 9)
    return ["  " + "  ".join(_aligned(row, widths)) for row in rows]


def _aligned(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]


def _describe_adaptation(adaptation: AdaptationStatistics) -> list[str]:
    costs = ", ".join(f"{tokens}: {1e3 * seconds:.2f}" for tokens, seconds in adaptation.pass_s.items())
    width = max((len(name) for name in adaptation.drafters), default=0)
    return [
        f"adaptation {adaptation.tokens_per_s:.1f} tokens/s lately; ms of a pass by its tokens (measured): {costs}",
        *(
            f"  {name.ljust(width)}  {1e3 * state.proposal_s:.2f} ms a proposal; " + _asked(state.share_on)
            for name, state in adaptation.drafters.items()
        ),
    ]


def _asked(share_on: float) -> str:
    if share_on == 1.0:
        return "asked at every step"
    return "asked where cheaper ones promise too little" if share_on else "off, tried now and then"
