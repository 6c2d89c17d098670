"""Draft models that come with flexspec."""

from importlib import resources
from pathlib import Path

_FOLDER = "shipped"


def shipped_names() -> list[str]:
    """What they are called: `model:kind`."""
    folder = Path(str(resources.files("flexspec.models"))) / _FOLDER
    return sorted(f"{draft.parent.name}:{draft.name}" for draft in folder.glob("*/*") if draft.is_dir())


def shipped_folder(name: str) -> Path | None:
    """The folder of the draft model called `name`; None if none is called so."""
    if name not in shipped_names():
        return None
    model, _, kind = name.partition(":")
    return Path(str(resources.files("flexspec.models"))) / _FOLDER / model / kind
