"""Hardware by name: presets of the package, files, and this machine where it has been measured."""

import json
import os
import re
from importlib import resources
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError
from flexspec.home import cache_home
from flexspec.passes.search.hardware.description import Hardware
from flexspec.passes.search.hardware.machine import this_machine
from flexspec.passes.search.hardware.read import read_hardware

PRESETS = ("a10gx4", "a10gx4-2nodes", "a100-80gx8", "h100x8", "h100x8-8nodes", "h200x1", "h200x8", "local")
_LOCAL = re.compile(r"local(?:-([1-9]\d*))?")
_CALIBRATE = "run `flexspec calibrate`, which takes about two minutes"


def load_hardware(name_or_path: str | os.PathLike[str]) -> Hardware:
    """The hardware that a name or file describes.

    Args:
        name_or_path: one of `PRESETS`, or a JSON file. `local` is this machine as `flexspec calibrate` measured it, with as many
            devices as it was measured with, the most if several times; `local-2` is that with 2.

    Raises:
        UsageError: if there is no such preset or file, the file describes no hardware, or this machine was not measured.
    """
    name = os.fspath(name_or_path)
    if found := _LOCAL.fullmatch(name):
        return _load_local(found[1])
    if name in PRESETS:
        text = resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
        return read_hardware(name, json.loads(text), source=f"hardware preset {name}")
    path = Path(name)
    if path.suffix != ".json" and not path.exists():
        raise UsageError(f"hardware {name!r} is unknown: give one of {', '.join(PRESETS)}, or a JSON file")
    return read_hardware(path.stem, _read_json(path), source=f"hardware file {name!r}")


def local_file(num_devices: int) -> Path:
    """Where `local` with so many devices is kept."""
    return cache_home() / "hardware" / f"local-{num_devices}.json"


def _load_local(devices: str | None) -> Hardware:
    if devices is not None:
        path = local_file(int(devices))
        fix = f"run `flexspec calibrate --devices {devices}`, which takes about two minutes"
    else:
        measured = [
            int(found[1]) for one in local_file(1).parent.glob("local-*.json") if (found := _LOCAL.fullmatch(one.stem)) and found[1]
        ]
        path = local_file(max(measured, default=1))
        fix = _CALIBRATE
    if not path.exists():
        raise UsageError(f"hardware local{'-' + devices if devices else ''} is not known yet: this machine was not measured; {fix}")
    content = _read_json(path)
    machine = content.get("machine") if isinstance(content, dict) else None
    if machine != this_machine():
        raise UsageError(f"hardware local was measured on another machine ({machine}, where this one is {this_machine()}): {fix}")
    return read_hardware(path.stem, content, source=f"hardware file {str(path)!r}")


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"hardware file {str(path)!r} can't be read: {error.strerror}; give a preset or a JSON file") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"hardware file {str(path)!r} is not JSON ({error}): give a preset, or a file that flexspec calibrate wrote"
        ) from None
