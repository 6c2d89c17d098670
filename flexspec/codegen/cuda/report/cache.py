"""Reports that were made before, in flexspec's home folder."""

import hashlib
import json
import os
import tempfile
from pathlib import Path

from flexspec.codegen.cuda.kernels.variant import KernelVariant
from flexspec.codegen.cuda.report.compile_ahead import require_compilable
from flexspec.codegen.cuda.report.variant_report import VariantReport, report_variant
from flexspec.codegen.cuda.targets import GpuTarget
from flexspec.home import cache_home

_MADE_BY = ("compile_ahead.py", "resources.py", "sass.py", "tools.py", "variant_report.py")


def default_cache_dir() -> Path:
    """`kernels` in the folder that FLEXSPEC_HOME names, or in ~/.cache/flexspec."""
    return cache_home() / "kernels"


def cached_report(variant: KernelVariant, target: GpuTarget, cache_dir: Path) -> VariantReport:
    """The variant's report: from the cache, if an intact one for this source, these options and this compiler lies there.

    Raises:
        CompileError: the compiler refuses the variant.
        UsageError: the kernels were defined for Triton's interpreter.
    """
    path = cache_dir / f"{variant.kernel}-{target.name}-{cache_key(variant, target)}.json"
    report = _read(path)
    if report is None:
        report = report_variant(variant, target)
        _write(path, report)
    return report


def cache_key(variant: KernelVariant, target: GpuTarget) -> str:
    """A digest of all that a report depends on."""
    from triton import __version__

    require_compilable(variant)
    constants = {name: getattr(value, "cache_key", None) or repr(value) for name, value in variant.constants.items()}
    parts = (
        variant.function.cache_key,
        variant.case,
        list(variant.signature.items()),
        sorted(constants.items()),
        sorted(variant.divisible),
        variant.num_warps,
        variant.num_stages,
        (target.backend, target.arch, target.warp_size),
        __version__,
        [(Path(__file__).parent / name).read_text() for name in _MADE_BY],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _read(path: Path) -> VariantReport | None:
    try:
        return VariantReport.from_json(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: Path, report: VariantReport) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix="writing-", delete=False) as file:
        json.dump(report.to_json(), file)
    os.replace(file.name, path)
