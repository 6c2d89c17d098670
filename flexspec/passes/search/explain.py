"""Why a strategy was chosen, and how two differ: tables of reports."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_FIGURES = {
    "step_ms": "ms a step",
    "tokens_per_step": "tokens a step",
    "ms_per_token": "ms a token",
    "tokens_per_s": "tokens/s",
    "memory_gb_per_device": "GB a device",
}
_MOST_OF_FRONT = 12
_STRATEGY_WIDTH = 30
_DEFAULT = "one device, no speculation"
_SHOWN = 5e-4
"""Smaller shares of a step are not shown."""


def explain(report: Mapping[str, Any], *, top: int = 2) -> RenderableType:
    """The choice, what it is compared with, where its time and memory go, what binds it, and what was left out.

    Args:
        report: of a search; what a JSON file of its results leaves out is left out here.
        top: how many of the best candidates are shown, the choice included.
    """
    shown: list[RenderableType] = [_heading(report), _candidates(report, top), _parts(report)]
    if report.get("binding"):
        shown.append(Text(f"What binds: {report['binding']}"))
    shown.append(_front(report.get("pareto", [])))
    shown.append(Text(_counts(report)))
    shown += [Text(f"Note: {reason}") for reason in report.get("skipped", [])]
    shown += [Text(f"Note: {note}") for note in report.get("notes", [])]
    return Group(*shown)


def describe(one: Mapping[str, Any]) -> str:
    """A strategy in a few words, for example `dp 1 · pp 2 · tp 8, tree of 16 by suffix`."""
    degrees = " · ".join(f"{name} {one[name]}" for name in ("dp", "pp", "tp"))
    if one.get("micro_batches", 1) > 1:
        degrees += f", {one['micro_batches']} micro-batches"
    if not one["tree_size"]:
        return f"{degrees}, no speculation"
    placement = one.get("placement", {})
    drafters = ", ".join(f"{name} ({placement[name]})" if name in placement else name for name in one.get("drafters", []))
    return f"{degrees}, tree of {one['tree_size']} by {drafters}"


def diff(name_a: str, a: Mapping[str, Any], name_b: str, b: Mapping[str, Any]) -> RenderableType:
    """What differs between the choices of two reports, and between what is predicted of them."""
    table = Table(title="Predicted, not measured")
    table.add_column("")
    table.add_column(name_a, overflow="fold", justify="right")
    table.add_column(name_b, overflow="fold", justify="right")
    table.add_column("second ÷ first", justify="right")
    for field in ("model", "hardware"):
        if field in a and field in b and a[field] != b[field]:
            table.add_row(field, str(a[field]), str(b[field]), "")
    for field, (one, other) in _differences(a.get("workload", {}), b.get("workload", {})).items():
        table.add_row(field, one, other, "")
    table.add_section()
    for field, (one, other) in _differences(a["choice"], b["choice"]).items():
        table.add_row(field, one, other, "")
    table.add_section()
    for field, label in _FIGURES.items():
        _add_figures(table, label, a["predicted"][field], b["predicted"][field])
    table.add_section()
    parts_a, parts_b = a["predicted"]["parts"], b["predicted"]["parts"]
    for part in dict.fromkeys([*parts_a, *parts_b]):
        _add_figures(table, f"{part}, ms", parts_a.get(part, 0.0), parts_b.get(part, 0.0))
    return table


def _add_figures(table: Table, label: str, a: float, b: float) -> None:
    table.add_row(label, _number(a), _number(b), f"{b / a:.2f}" if a else "")


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Values that are not alike, as text."""
    fields = dict.fromkeys([*a, *b])
    return {field: (_value(a.get(field)), _value(b.get(field))) for field in fields if a.get(field) != b.get(field)}


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {_value(one)}" for name, one in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _heading(report: Mapping[str, Any]) -> Text:
    text = f"{describe(report['choice'])}"
    if "model" in report:
        workload = report["workload"]
        bound = "" if workload["max_latency_ms"] is None else f" within {workload['max_latency_ms']:g} ms a token"
        given = workload.get("kv_cache_dtype", "auto")
        cache = "" if given == "auto" else f", KV cache {given}"
        text = (
            f"{report['model']} on {report['hardware']}, for {workload['objective']}{bound}: batch {workload['batch']}, "
            f"{workload['context']} + {workload['new_tokens']} tokens, {workload['dtype']}{cache}\n{text}"
        )
    return Text(f"{text}\nAll figures are predicted, none is measured.", style="bold")


def _candidates(report: Mapping[str, Any], top: int) -> Table:
    rows = [("choice", {**report["choice"], **report["predicted"]})]
    ranking = report.get("ranking") or [rows[0][1], *([report["runner_up"]] if report.get("runner_up") else [])]
    rows += [("runner-up" if place == 2 else f"{place}.", one) for place, one in enumerate(ranking[1:top], 2)]
    if report.get("incremental"):
        rows.append(("without speculation", report["incremental"]))
    if report.get("baseline"):
        rows.append((_DEFAULT, report["baseline"]))
    table = Table(show_lines=True)
    table.add_column("strategy", min_width=_STRATEGY_WIDTH, overflow="fold")
    for label in _FIGURES.values():
        table.add_column(label.replace(" a ", " a\n"), justify="right")
    for name, one in rows:
        table.add_row(f"[bold]{name}[/]\n{escape(describe(one))}", *(_number(one[field]) for field in _FIGURES))
    if not report.get("baseline"):
        table.add_row(f"[bold]{_DEFAULT}[/]\ndoes not fit", *[""] * len(_FIGURES))
    return table


def _parts(report: Mapping[str, Any]) -> Table:
    parts, memory = report["predicted"]["parts"], report.get("memory_parts", {})
    table = Table()
    for label in ("a step", "ms", "%", "fullest device", "GB"):
        table.add_column(label, justify="left" if label in ("a step", "fullest device") else "right")
    whole = sum(parts.values()) or 1.0
    left = [(name, _number(value), f"{value / whole:.0%}") for name, value in parts.items() if value >= _SHOWN * whole]
    right = [(name, _number(value)) for name, value in memory.items() if value]
    for row in range(max(len(left), len(right))):
        table.add_row(*(left[row] if row < len(left) else ("", "", "")), *(right[row] if row < len(right) else ("", "")))
    return table


def _front(front: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Nothing else is better in time, throughput and devices at once")
    table.add_column("strategy", min_width=_STRATEGY_WIDTH, overflow="fold")
    for label in ("devices", "ms a\ntoken", "tokens/s", "tokens/s\na device"):
        table.add_column(label, justify="right")
    for one in front[:_MOST_OF_FRONT]:
        devices = one.get("devices", one["dp"] * one["pp"] * one["tp"])
        figures = (_number(value) for value in (one["ms_per_token"], one["tokens_per_s"], one["tokens_per_s"] / devices))
        table.add_row(escape(describe(one)), str(devices), *figures)
    if len(front) > _MOST_OF_FRONT:
        table.caption = f"and {len(front) - _MOST_OF_FRONT} more"
    return table


def _counts(report: Mapping[str, Any]) -> str:
    pruned = ", ".join(f"{reason} {number}" for reason, number in report.get("pruned", {}).items()) or "none"
    text = f"{report.get('candidates', 0)} strategies compared; pruned: {pruned}"
    if report.get("unused_devices"):
        text += f"; {report['unused_devices']} devices are left unused: more would not pay"
    if "seconds" in report:
        text += f"; {report['seconds']:.2f} s"
    if report.get("capture_seconds"):
        text += f", and {report['capture_seconds']:.2f} s to read the models"
    return text


def _number(value: float) -> str:
    """Three digits that count."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
