"""What the README and the pages of docs/ name exists: commands with their options, files and folders."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from flexspec.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "flexspec/models/shipped").rglob("*.md"))]
# Where pages say no more of a file than its name within what they are about.
FOLDERS = ("", "flexspec", "flexspec/ir", "flexspec/codegen", "flexspec/codegen/cuda", "flexspec/passes", "tests/cases")
PATH = re.compile(r"`((?:[\w*-][\w.*-]*/)+[\w.*-]*|[\w-]+\.py)`")


def commands() -> list[str]:
    """Every command line that stands in a block of some page, its comment taken off."""
    found = []
    for page in PAGES:
        inside = False
        for line in page.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
            if line.startswith("```"):
                inside = not inside
            elif inside and line.startswith("flexspec "):
                found.append(" ".join(line.partition(" # ")[0].split()))
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("line", commands())
def test_commands_take_what_the_pages_give_them(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    group = typer.main.get_command(app)
    command = group.commands[name]  # type: ignore[attr-defined]
    command.make_context(name, arguments)


def test_every_command_is_shown() -> None:
    group = typer.main.get_command(app)
    assert {shlex.split(line)[1] for line in commands()} == set(group.commands)  # type: ignore[attr-defined]


def test_files_and_folders_are_where_the_pages_say() -> None:
    named = {(page.name, path) for page in PAGES for path in PATH.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 30
    missing = {(page, path) for page, path in named if not any(list((ROOT / folder).glob(path)) for folder in FOLDERS)}
    assert not missing
