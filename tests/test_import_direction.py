"""Arrows between packages only point down: errors, config, tree shapes, strategy → ir → passes → codegen → runtime → api, cli."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BASE = {"errors", "grammar", "config", "home", "tree_shape", "acceptance", "parallel", "strategy"}

# What each package or module directly under flexspec may import from flexspec besides itself.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "home": {"errors"},
    "grammar": {"errors"},
    "config": {"errors", "home", "grammar"},
    "tree_shape": {"errors", "home", "config"},
    "acceptance": {"errors"},
    "parallel": {"errors"},
    "strategy": {"errors", "home", "config", "tree_shape", "parallel"},
    "models": {"errors", "home", "config", "ir"},  # a head is written with the IR's own attention
    "ir": BASE,
    "passes": BASE | {"ir"},
    "codegen": BASE | {"ir", "passes"},
    "runtime": BASE | {"codegen"},  # it gets a compiled model and a strategy: no pass and no graph
    "api": BASE | {"models", "ir", "passes", "codegen", "runtime"},
    "calibration": BASE | {"models", "ir", "passes", "codegen", "runtime", "api"},
    "bench": BASE | {"models", "codegen", "runtime", "api"},
    "checking": BASE | {"models", "codegen", "runtime", "api", "bench"},
    "tuning": BASE | {"models", "codegen", "runtime", "api", "bench"},
    "cli": BASE | {"models", "ir", "passes", "codegen", "runtime", "api", "bench", "calibration", "checking", "tuning", "__init__"},
    "server": BASE | {"models", "ir", "passes", "codegen", "runtime", "api", "__init__"},
    "__init__": BASE | {"models", "ir", "passes", "codegen", "runtime", "api"},
    "__main__": {"cli"},
}

# Programs that are started by `python -m` and live beside what they are about. They may import whatever lies below the command
# line, and nothing imports them.
PROGRAMS: dict[str, set[str]] = {program: ALLOWED["cli"] for program in ("flexspec.codegen.device_check", "flexspec.calibration.report")}


def violations(module: str, source: str) -> list[str]:
    """The imports in `source`, the text of the module with the dotted name `module`, that point the wrong way."""
    layer = module.split(".")[1] if "." in module else "__init__"
    assert layer in ALLOWED, f"{module}: say in ALLOWED what {layer} may import"
    program = _program(module)
    allowed = ALLOWED[layer] if program is None else PROGRAMS[program]
    found = []
    for node in ast.walk(ast.parse(source)):
        for imported in _imported(module, node):
            parts = imported.split(".")
            if parts[0] != "flexspec":
                continue
            target = parts[1] if len(parts) > 1 else "__init__"
            if target != layer and target not in allowed:
                found.append(f"{module}:{node.lineno} imports {imported}, but {program or layer} may only import {sorted(allowed)}")
    return found


def _program(module: str) -> str | None:
    """The program that a module is part of."""
    return next((program for program in PROGRAMS if f"{module}.".startswith(f"{program}.")), None)


def imported_programs(module: str, source: str) -> list[str]:
    """The programs that `source`, the text of the module with the dotted name `module`, imports from, besides its own."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = _imported(module, node)
        if isinstance(node, ast.ImportFrom):
            names += [f"{base}.{alias.name}" for base in names for alias in node.names]
        found += [program for program in map(_program, names) if program is not None and program != _program(module)]
    return found


def _imported(module: str, node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        package = module.split(".")[: -node.level]
        base = ".".join([*package, base] if base else package)
    # `from flexspec import runtime` names a package, `from flexspec import compile` something that the front page offers.
    if base == "flexspec":
        return [f"flexspec.{alias.name}" if alias.name in ALLOWED else "flexspec" for alias in node.names]
    return [base]


def _module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    if parts[-1] == "__init__" and len(parts) > 1:
        # Relative imports in a package's front page start from the package itself, as they would in a module of it.
        return ".".join(parts) if len(parts) > 2 else "flexspec"
    return ".".join(parts)


@pytest.mark.parametrize("path", sorted((ROOT / "flexspec").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_arrow_points_up(path: Path) -> None:
    assert violations(_module_name(path), path.read_text()) == []
    assert imported_programs(_module_name(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("flexspec.runtime.engine", "import torch\nimport flexspec.passes.norm"),
        ("flexspec.runtime.engine", "from flexspec.ir.graph import Graph"),
        ("flexspec.runtime.engine", "from flexspec import passes"),
        ("flexspec.runtime.engine", "from ..passes.norm import run"),
        ("flexspec.runtime.engine", "from .. import ir"),
        ("flexspec.runtime.drafters.ssm", "def f():\n    from flexspec.api import compile"),
        ("flexspec.runtime.drafters.__init__", "from ...ir import graph"),
        ("flexspec.codegen.lower", "if True:\n    from flexspec.runtime.engine import Engine"),
        ("flexspec.passes.norm", "from flexspec.codegen.batch import Batch"),
        ("flexspec.ir.capture", "import flexspec.models as models"),
        ("flexspec.ir.capture", "from flexspec import compile"),
        ("flexspec.models.load", "from flexspec.passes.norm import recognise_norm"),
        ("flexspec.config", "from flexspec.strategy import Strategy"),
        ("flexspec.api", "from flexspec.cli.main import run"),
        ("flexspec", "from flexspec.cli.main import run"),
    ],
)
def test_wrong_arrows_are_found(module: str, source: str) -> None:
    (found,) = violations(module, source)
    assert module in found
    assert "imports flexspec" in found


def test_right_arrows_pass() -> None:
    source = "import torch\nfrom flexspec.codegen.batch import Batch\nfrom .request import Request\nfrom flexspec.errors import UsageError"
    assert violations("flexspec.runtime.engine", source) == []
    assert violations("flexspec.cli.generate", "import flexspec\nfrom flexspec import compile") == []


@pytest.mark.parametrize(
    "source",
    [
        "import flexspec.codegen.device_check",
        "from flexspec.codegen.device_check.sizes import FULL",
        "from flexspec.codegen import device_check",
        "def f():\n    from ..codegen.device_check import program",
    ],
)
def test_nothing_may_import_a_program(source: str) -> None:
    assert imported_programs("flexspec.cli.check", source)
    assert not imported_programs("flexspec.cli.check", "from flexspec.codegen import batch\nimport flexspec.codegen.cuda.tiles")
    assert not imported_programs("flexspec.codegen.device_check.program", "from flexspec.codegen.device_check.sizes import FULL")


def test_a_program_may_import_what_lies_below_the_command_line() -> None:
    source = "from flexspec.runtime.engine import Engine\nfrom flexspec.api import compile\nfrom flexspec.bench import machine"
    assert violations("flexspec.codegen.device_check.program", source) == []
    assert violations("flexspec.codegen.device_check", source) == []
    (found,) = violations("flexspec.codegen.device_check.program", "from flexspec.cli.main import run")
    assert "flexspec.codegen.device_check may only import" in found
    assert violations("flexspec.codegen.device_checks", "from flexspec.runtime.engine import Engine")


def test_a_new_package_must_be_placed() -> None:
    with pytest.raises(AssertionError, match="novelty"):
        violations("flexspec.novelty.thing", "import torch")
