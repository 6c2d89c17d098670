"""`flexspec inspect`: what the compiler makes of a model."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from flexspec.cli.json_file import check_writable, write_json
from flexspec.cli.options import DeviceOption, DtypeOption, JsonOption, ModelArgument

if TYPE_CHECKING:
    from flexspec.api.inspection import Inspection


_OWN = "flexspec."  # the dialect's operators


def inspect(model: ModelArgument, dtype: DtypeOption = None, device: DeviceOption = None, json_file: JsonOption = None) -> None:
    """Show a model's operators before and after the passes, its memory, its FLOPs, and what runs each operator."""
    from flexspec.api.inspection import inspect_model

    check_writable(json_file)
    inspection = inspect_model(model, dtype=dtype or "bfloat16", device=device)
    console = Console(highlight=False)
    console.print(_operators(inspection))
    console.print(_passes(inspection))
    console.print(_sizes(inspection))
    console.print(_implementations(inspection))
    generic = sorted(name for name in inspection.operators_after if not name.startswith(_OWN))
    console.print(f"stayed generic: {', '.join(generic) or 'nothing'}")
    write_json(json_file, asdict(inspection))


def _operators(inspection: "Inspection") -> Table:
    before, after = inspection.operators_before, inspection.operators_after
    table = Table("operator", title="operators of one pass", title_justify="left")
    table.add_column("before passes", justify="right")
    table.add_column("after passes", justify="right")
    for name in sorted({*before, *after}, key=lambda name: (-before.get(name, 0), -after.get(name, 0), name)):
        table.add_row(name, str(before.get(name, "")), str(after.get(name, "")))
    table.add_section()
    for kind, is_own in (("recognised", True), ("generic", False)):
        counts = [sum(counts[name] for name in counts if name.startswith(_OWN) == is_own) for counts in (before, after)]
        table.add_row(kind, *map(str, counts))
    table.add_row("all", str(sum(before.values())), str(sum(after.values())))
    return table


def _passes(inspection: "Inspection") -> Table:
    table = Table("pass", title="passes, in order", title_justify="left")
    table.add_column("matches", justify="right")
    table.add_column("expected", justify="right")
    for note in inspection.passes:
        table.add_row(note.name, str(note.matches), str(note.expected or ""))
    return table


def _sizes(inspection: "Inspection") -> Table:
    table = Table(title=f"{inspection.model}: sizes", title_justify="left", show_header=False)
    table.add_row("parameters", f"{inspection.parameters:,}")
    for dtype, size in inspection.weight_bytes.items():
        table.add_row(f"weights, {dtype}", decimal(size))
    for dtype, size in inspection.kv_bytes_per_token.items():
        table.add_row(f"KV cache a token, {dtype}", decimal(size))
    for context, flops in inspection.flops_per_token.items():
        table.add_row(f"FLOPs of a token that sees {context}", f"{flops:,}")
    table.add_row("distinct blocks", str(inspection.blocks))
    return table


def _implementations(inspection: "Inspection") -> Table:
    lowering = inspection.lowering
    reason = f" ({lowering.reason})" if lowering.reason else ""
    table = Table("operator", "runs as", title=f"code for {lowering.target}{reason}", title_justify="left")
    for operator, implementation in sorted(lowering.implementations.items()):
        table.add_row(operator, implementation)
    return table
