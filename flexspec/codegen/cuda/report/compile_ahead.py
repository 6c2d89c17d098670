"""Compiling a kernel for a GPU that need not be there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flexspec.codegen.cuda.kernels.variant import KernelVariant
from flexspec.codegen.cuda.targets import GpuTarget
from flexspec.errors import UsageError

_DIVISIBLE = [["tt.divisibility", 16]]


class CompileError(Exception):
    """A variant that the compiler refuses; the message is the compiler's."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What the compiler made of a variant.

    Attributes:
        assembly: PTX, or AMD's assembly.
        binary: the cubin, or AMD's code object.
        shared_bytes: shared memory that a launch asks for, of a program.
    """

    assembly: str
    binary: bytes
    shared_bytes: int


def compile_variant(variant: KernelVariant, target: GpuTarget) -> Compiled:
    """Compiles a variant as its launches on `target` would.

    Pointers are not said to reach less than 2 GiB, which Triton tells AMD's compiler where it is so: a KV cache is larger.

    Raises:
        CompileError: the compiler refuses it.
        UsageError: the kernels were defined for Triton's interpreter.
    """
    from triton import compile as triton_compile
    from triton.backends.compiler import GPUTarget as TritonTarget
    from triton.compiler import ASTSource
    from triton.errors import TritonError

    require_compilable(variant)
    parameters = list(variant.function.arg_names)
    assert list(variant.signature) == parameters, f"{variant.kernel} has parameters {parameters}, its signature {list(variant.signature)}"
    source = ASTSource(
        fn=variant.function,
        signature=dict(variant.signature),
        constexprs=dict(variant.constants),
        attrs={(i,): _DIVISIBLE for i, name in enumerate(variant.signature) if name in variant.divisible},
    )
    # Launches fuse multiplications and additions by default; said outright, Triton does not warn that this will change.
    options = {"num_warps": variant.num_warps, "num_stages": variant.num_stages, "enable_fp_fusion": True}
    try:
        with _compiler_environment():
            kernel = triton_compile(source, target=TritonTarget(target.backend, target.arch, target.warp_size), options=options)
    # Passes of the compilers that fail raise the latter.
    except (TritonError, RuntimeError) as error:
        raise CompileError(f"{variant.kernel} ({variant.case}) for {target.name}: {error}") from error
    assembly, binary = ("amdgcn", "hsaco") if target.backend == "hip" else ("ptx", "cubin")
    return Compiled(assembly=kernel.asm[assembly], binary=kernel.asm[binary], shared_bytes=kernel.metadata.shared)


def require_compilable(variant: KernelVariant) -> None:
    """Refuses functions of Triton's interpreter.

    Raises:
        UsageError: TRITON_INTERPRET was set when the kernels were imported.
    """
    if not hasattr(variant.function, "cache_key"):
        raise UsageError(
            f"{variant.kernel} was defined for Triton's interpreter, which compiles nothing: unset TRITON_INTERPRET and start anew"
        )


@contextmanager
def _compiler_environment() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="flexspec-triton-") as folder:
        # Triton's cache keeps every stage of every variant, hundreds of megabytes; reports are cached instead. Without line numbers
        # the code is the same and a fifth sooner there.
        changes = {"TRITON_CACHE_DIR": folder, "TRITON_DISABLE_LINE_INFO": "1"}
        before = {name: os.environ.get(name) for name in changes}
        os.environ.update(changes)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
