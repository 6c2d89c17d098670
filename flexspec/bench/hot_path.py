"""Whether compiled models run what flexspec is measured by."""

from flexspec.api.llm import LLM
from flexspec.errors import UsageError

_NATIVE_TARGET = "cpu-native"
_GPU_TARGET = "cuda"
_REFERENCE = "reference"


def check_hot_path(llm: LLM) -> None:
    """Refuse to measure models with operators that are there to be right and not to be fast.

    Raises:
        UsageError: if the native kernels of a model failed to compile, an operator of its passes runs as its reference, or a pass did not
            recognise all that it should have.
    """
    for compilation in (llm.plan.llm, *llm.plan.ssms):
        lowering = compilation.model.lowering
        if lowering.compile_failed:
            raise UsageError(f"{compilation.name} can't be measured: {lowering.reason}; mend the compiler, or name another in CXX")
        if missed := compilation.missed:
            raise UsageError(
                f"{compilation.name} can't be measured: {missed}, so it runs slower than it could; give a model of which flexspec inspect "
                "shows that all was recognised"
            )
        references = sorted(operator for operator, implementation in lowering.implementations.items() if implementation == _REFERENCE)
        if references:
            why = f" ({lowering.reason})" if lowering.reason else ""
            raise UsageError(
                f"{compilation.name} can't be measured: on {lowering.target}{why} the slow reference runs for {', '.join(references)}; "
                f"give a model, or mend the machine's compiler, so that it runs on {_NATIVE_TARGET}"
            )


def slow_targets(llm: LLM) -> list[str]:
    """For every model that runs on another target than the native one or a GPU, a sentence that says so, and why."""
    lowerings = [(compilation.name, compilation.model.lowering) for compilation in (llm.plan.llm, *llm.plan.ssms)]
    return [
        f"{name} ran on {lowering.target}, NOT on {_NATIVE_TARGET}: these speeds are not flexspec's. {lowering.reason}"
        for name, lowering in lowerings
        if lowering.target not in (_NATIVE_TARGET, _GPU_TARGET)
    ]
