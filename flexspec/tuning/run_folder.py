"""The folder of a tuning: which run it holds, and whether that one is done."""

import json
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError
from flexspec.models.draft_folder import is_draft_folder
from flexspec.models.whole_file import write_text_whole
from flexspec.tuning.config import TuneConfig
from flexspec.tuning.report import TuneReport

_SETTINGS = "settings.json"
_REPORT = "report.json"
_MADE_OF = "made_of"


class RunFolder:
    """Where a run keeps what it makes.

    Args:
        path: of the folder; made if need be.
        config: of the run.
        resume: whether the folder should hold that run already.

    Raises:
        UsageError: if it holds none and should, holds one and should not, holds another one, or can't be written.
    """

    def __init__(self, path: Path, config: TuneConfig, *, resume: bool) -> None:
        self.path = path
        self._settings = config.to_json()
        self._made_of: str | None = None
        if (path / _SETTINGS).exists():
            self._check(resume)
        elif resume:
            raise UsageError(f"--resume: {str(path)!r} holds no run to go on with; leave out --resume to begin one")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {str(path)!r} can't be written ({error.strerror}): give another folder") from None

    def claim(self, made_of: str) -> None:
        """Note that the run is this one, before anything is kept of it.

        Args:
            made_of: a fingerprint of the model and the user's prompts.

        Raises:
            UsageError: if the run in the folder has another one.
        """
        if self._made_of is None:
            content = {**self._settings, _MADE_OF: made_of}
            write_text_whole(self.path / _SETTINGS, json.dumps(content, indent=2, sort_keys=True) + "\n")
        elif self._made_of != made_of:
            raise UsageError(
                f"--out {str(self.path)!r} holds a run with another model or other prompts under the same names: give back the same, or "
                "give another folder"
            )

    def report(self) -> TuneReport | None:
        """What came of the run; None if it has not come to its end, or a draft model has been taken away since."""
        path = self.path / _REPORT
        if not path.exists():
            return None
        try:
            report = TuneReport.from_json(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{str(path)!r} is not a report of a tuning ({error}): remove it, and it is made again") from None
        return report if all(is_draft_folder(self.path / member.folder) for member in report.members) else None

    def finish(self, report: TuneReport) -> None:
        """Keep what came of the run."""
        write_text_whole(self.path / _REPORT, json.dumps(report.to_json(), indent=2) + "\n")

    def _check(self, resume: bool) -> None:
        out, path = repr(str(self.path)), self.path / _SETTINGS
        if not resume:
            raise UsageError(f"--out {out} holds another run: add --resume to go on with it, or give another folder")
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            self._made_of = content.pop(_MADE_OF, None)
            old, new = _flat(content), _flat(self._settings)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise UsageError(f"{str(path)!r} does not say which run --out {out} holds ({error!r}): give another folder") from None
        changed = [f"{name}={old.get(name)!r}, not {new.get(name)!r}" for name in sorted(old | new) if old.get(name) != new.get(name)]
        if changed:
            raise UsageError(f"--out {out} holds a run with {', '.join(changed)}: give the same settings, or another folder")


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Groups of settings dissolved; JSON's view of each value."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat
