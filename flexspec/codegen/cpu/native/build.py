"""Compiling the native kernels on the user's machine, and a cache of the result that checks itself."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from flexspec.home import cache_home

SOURCES = Path(__file__).parent / "kernels"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-shared",
    "-fPIC",
    # A multiply and an add fuse only where the kernels say so: the compiler's choice may differ from one loop to its twin.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-Wno-psabi",
)
COMPILERS = ("g++", "c++", "clang++")
COMPILE_TIMEOUT_S = 180


class NativeUnavailable(Exception):
    """The native kernels can't be had on this machine; the message says why."""


class NativeBuildError(NativeUnavailable):
    """There is a compiler, and it failed: something on this machine wants mending."""


def default_cache_dir() -> Path:
    """`codegen` in the folder that FLEXSPEC_HOME names, or in ~/.cache/flexspec."""
    return cache_home() / "codegen"


def build_library(cache_dir: Path, *, flags: tuple[str, ...] = FLAGS) -> Path:
    """The compiled library, from the cache if an intact one for this compiler and instruction set lies there.

    Raises:
        NativeBuildError: no compiler compiles the kernels, or the cache folder can't be written.
        NativeUnavailable: no compiler is on the PATH.
    """
    failures = []
    for name in dict.fromkeys(filter(None, (os.environ.get("CXX"), *COMPILERS))):
        compiler = shutil.which(name)
        if compiler is None:
            continue
        try:
            return _cached_or_compiled(compiler, cache_dir, flags)
        except subprocess.CalledProcessError as error:
            failures.append(f"{name} failed: {_first_error(error.stderr)}")
        except subprocess.TimeoutExpired:
            failures.append(f"{name} took over {COMPILE_TIMEOUT_S} s")
        except OSError as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise NativeBuildError("; ".join(failures))
    raise NativeUnavailable(f"no C++ compiler found (looked for {', '.join(COMPILERS)}, and at CXX)")


def _cached_or_compiled(compiler: str, cache_dir: Path, flags: tuple[str, ...]) -> Path:
    key = _cache_key(compiler, flags)
    # The name carries the digest of the content: one atomic rename publishes both, and nothing unchecked is loaded.
    for entry in sorted(cache_dir.glob(f"{key}-*.so")):
        if entry.name == _entry_name(key, entry):
            return entry
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="compiling-") as folder:
        built = Path(folder) / "flexspec.so"
        _run([compiler, *flags, str(SOURCES / "flexspec.cpp"), "-o", str(built)])
        entry = cache_dir / _entry_name(key, built)
        os.replace(built, entry)
    return entry


def _cache_key(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        if source.suffix in (".cpp", ".h"):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    digest.update("\0".join((compiler, *flags)).encode())
    # The predefined macros name the compiler's version and every instruction set extension that the flags enable.
    digest.update(_run([compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull]))
    return digest.hexdigest()[:24]


def _entry_name(key: str, library: Path) -> str:
    return f"{key}-{hashlib.sha256(library.read_bytes()).hexdigest()}.so"


def _run(command: list[str]) -> bytes:
    return subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_TIMEOUT_S, stdin=subprocess.DEVNULL).stdout


def _first_error(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if "error" in line), lines[-1].strip() if lines else "no message")
