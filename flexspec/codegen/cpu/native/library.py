"""The loaded native library, with its C functions declared."""

import ctypes
from functools import cache
from pathlib import Path

import torch  # noqa: F401  (loads the OpenMP runtime that the kernels then share with PyTorch)

from flexspec.codegen.cpu.native.build import FLAGS, NativeUnavailable, build_library, default_cache_dir
from flexspec.codegen.cpu.native.structures import APPEND_ARGUMENTS, CBatch, CCache, CTopColumns


class NativeLibrary:
    """The C functions of one compiled library.

    Attributes:
        path: the file it was loaded from.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        c = ctypes.CDLL(str(path))
        self.create = c.flexspec_create
        self.create.restype = ctypes.c_void_p
        self.create.argtypes = (ctypes.c_int32, ctypes.c_int32)
        self.destroy = c.flexspec_destroy
        self.destroy.restype = None
        self.destroy.argtypes = (ctypes.c_void_p,)
        self.append = {}
        for name, arguments in APPEND_ARGUMENTS.items():
            function = c[f"flexspec_add_{name}"]
            function.restype = None
            function.argtypes = (ctypes.c_void_p, ctypes.POINTER(arguments))
            self.append[name] = function
        self.run = c.flexspec_run
        self.run.restype = ctypes.c_int32
        self.run.argtypes = (ctypes.c_void_p, ctypes.POINTER(CBatch), ctypes.POINTER(CCache))
        self.near_columns, self.best_columns = c.flexspec_near_columns, c.flexspec_best_columns
        for function in (self.near_columns, self.best_columns):
            function.restype = ctypes.c_int64
            function.argtypes = (ctypes.POINTER(CTopColumns),)
        self.publish = c.flexspec_publish
        self.publish.restype = None
        self.publish.argtypes = (ctypes.c_void_p, ctypes.c_int64)
        self.wait = c.flexspec_wait
        self.wait.restype = ctypes.c_int32
        self.wait.argtypes = (ctypes.c_void_p, *(ctypes.c_int64,) * 4)


def load_library(cache_dir: Path | None = None, *, flags: tuple[str, ...] = FLAGS) -> NativeLibrary:
    """Compile the native kernels, or take them from the cache folder, and load them; loaded once a process.

    Args:
        cache_dir: None: `default_cache_dir()`.
        flags: the compiler's; they select the instruction set.

    Raises:
        NativeUnavailable: no compiler, a failed compilation, or a library that doesn't load; the message says which.
    """
    return _load(cache_dir or default_cache_dir(), flags)


def loaded_library() -> NativeLibrary | None:
    """One that `load_library` has loaded already, for what is not worth compiling it."""
    return _loaded[-1] if _loaded else None


_loaded: list[NativeLibrary] = []


@cache
def _load(cache_dir: Path, flags: tuple[str, ...]) -> NativeLibrary:
    path = build_library(cache_dir, flags=flags)
    try:
        library = NativeLibrary(path)
    except OSError as error:
        raise NativeUnavailable(f"the compiled kernels don't load: {error}") from error
    _loaded.append(library)
    return library
