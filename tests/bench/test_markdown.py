"""The report in Markdown."""

import re
from dataclasses import replace

from rich.table import Table
from rich.text import Text

from bench_results import PATH, bench_result
from flexspec.bench.markdown import to_markdown
from flexspec.bench.markdown_table import escape, markdown_table

_PIPE = re.compile(r"(?<!\\)\|")


def tables(report: str) -> list[list[str]]:
    """Lines of every table."""
    found: list[list[str]] = []
    for before, line in zip(["", *report.splitlines()], report.splitlines(), strict=False):
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append(line)
    return found


def test_a_table_lines_up() -> None:
    table = Table(title="not shown", caption="a < b | c")
    table.add_column("name")
    table.add_column("tokens\na step", justify="right")
    table.add_row(Text("bold|er", style="bold"), "1.50\n1.25")
    table.add_row(Text("[red]日本", style=""), "")
    table.add_row(Text("", style="bold"), "2")
    assert markdown_table(table).splitlines() == [
        "| name         | tokens a step |",
        "| ------------ | ------------: |",
        "| **bold\\|er** |     1.50 1.25 |",
        "| \\[red]日本   |               |",
        "|              |             2 |",
        "",
        "a \\< b \\| c",
    ]


def test_special_characters() -> None:
    assert escape("a\\|b *c* `d` <e> [f]\n g_h") == "a\\\\\\|b \\*c\\* \\`d\\` \\<e> \\[f] g_h"


def test_the_whole_report() -> None:
    report = to_markdown([bench_result()])
    assert report.startswith(
        "# Decoding speed of tiny\n\n- **Model**: tiny, float32\n- **Drafters**: suffix, ./ssms/a\\|b\n- **Tree**: adaptive"
    )
    for part in ("2030-01-02T03:04:05+00:00", "python 3.12", "8 GiB", "greedy", "Adaptive trees go on learning", "at most 8 new tokens"):
        assert part in report
    assert "openvino was left out: it is not installed" in report and "too long for the model: 17" in report
    found = tables(report)
    assert len(found) == 6  # speeds, ratios, speed-ups, tokens a step, hit rates, profile
    for lines in found:
        assert len({len(line) for line in lines}) == 1
        assert len({len(_PIPE.findall(line)) for line in lines}) == 1
    speeds, ratios, speedups, tokens, hits, profile = ("\n".join(lines) for lines in found)
    assert speeds.count("flexspec-plain") == 3 and "\\[/] \\*maths\\* $x$" in speeds
    assert "flexspec/./ssms/a\\|b" in ratios and "one prompt" in ratios
    assert "1.50 (1.25\N{EN DASH}2.00)" in speedups and "0.50 (0.40\N{EN DASH}0.62)" in speedups
    assert "flexspec-plain" not in tokens and "3.00" in tokens
    assert "**flexspec**" in hits and "| Alpaca " in hits and "100%" in hits
    assert "forward" in profile


def test_batch_sizes_are_told_apart() -> None:
    one = bench_result()
    settings = one.settings | {"batch": 4, "batches": [1, 4], "temperature": 0.7, "top_p": 0.9}
    results = [replace(one, settings=settings | {"batch": 1}), replace(one, settings=settings, left_out={}, versions={"other": "2"})]
    report = to_markdown(results)
    assert len(tables(report)) == 12
    assert "## Tokens per step, stochastic, 1 at a time" in report and "## Tokens per step, stochastic, 4 at a time" in report
    assert "temperature 0.7, top_p 0.9" in report and "python 3.12, other 2" in report


def test_plain_decoding_alone() -> None:
    one = bench_result()
    plain = [row for row in one.rows if row.system == "flexspec-plain"]
    settings = one.settings | {"drafters": [], "tree": []}
    times = {"flexspec-plain": one.step_times["flexspec-plain"]}
    one = replace(one, rows=plain, settings=settings, step_times=times, ratios={}, ratios_by_category={}, drafts={})
    report = to_markdown([replace(one, left_out={}, too_long=[])])
    assert len(tables(report)) == 2 and "Drafters**: none" in report and "Notes" not in report and "Left out" not in report
    assert PATH not in report
