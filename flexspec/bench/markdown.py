"""A benchmark's results as a Markdown report."""

from collections.abc import Sequence

from flexspec.bench.markdown_table import escape, markdown_table
from flexspec.bench.notes import notes_of, warnings_of
from flexspec.bench.result import BenchResult, all_versions
from flexspec.bench.result_tables import result_tables
from flexspec.tree_shape import parse_tree


def to_markdown(results: Sequence[BenchResult]) -> str:
    """The whole report in GitHub-flavoured Markdown: what was measured on what, then every table, then what to know of them.

    Args:
        results: of one benchmark, one a batch size.
    """
    parts = [f"# Decoding speed of {escape(results[0].settings['model'])}", _listed(_header(results))]
    for result in results:
        at_a_time = f", {result.settings['batch']} at a time" if len(results) > 1 else ""
        for table in result_tables(result, with_step_times=True):
            parts += [f"## {escape(str(table.title))}{at_a_time}", markdown_table(table)]
    for title, remarks in (("Notes", notes_of(results)), ("Left out, and other warnings", warnings_of(results))):
        if remarks:
            parts += [f"## {title}", _listed([escape(remark) for remark in remarks])]
    return "\n\n".join(parts) + "\n"


def _header(results: Sequence[BenchResult]) -> list[str]:
    settings, machine = results[0].settings, results[0].machine
    sampling = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}, top_p {settings['top_p']:g}"
    lines = {
        "Model": f"{settings['model']}, {settings['dtype']}",
        "Drafters": ", ".join(settings["drafters"]) or "none",
        "Tree": str(parse_tree(settings["tree"])),
        "Verifier": settings["verifier"],
        "Text": f"at most {settings['max_tokens']} new tokens a prompt, {sampling}",
        "Machine": f"{machine['cpu']}, {machine['cores']} cores, threads: {machine['threads']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}; target {machine['target']}, row invariance {machine['row_invariance']}",
        "Versions": ", ".join(f"{name} {version}" for name, version in all_versions(results).items()),
        "Date": results[0].date,
    }
    return [f"**{name}**: {escape(str(told))}" for name, told in lines.items()]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
