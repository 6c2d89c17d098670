"""flexspec: a graph compiler for language models that drafts token trees and verifies them in one pass."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flexspec.api.compile import compile
    from flexspec.api.llm import LLM
    from flexspec.api.search import search
    from flexspec.config import SamplingParams
    from flexspec.errors import UsageError
    from flexspec.grammar import json_schema, regex
    from flexspec.parallel import ParallelPlan
    from flexspec.runtime.logprobs import TokenLogprobs
    from flexspec.runtime.output import Chunk, GenerationFailed, GenerationInterrupted, Output, RequestMistake
    from flexspec.strategy import Strategy, load_strategy

__all__ = [
    "LLM",
    "Chunk",
    "GenerationFailed",
    "GenerationInterrupted",
    "Output",
    "ParallelPlan",
    "RequestMistake",
    "SamplingParams",
    "Strategy",
    "TokenLogprobs",
    "UsageError",
    "compile",
    "json_schema",
    "load_strategy",
    "regex",
    "search",
]

# Imported when first asked for, so that `flexspec --help` does not wait for torch.
_HOMES = {
    "LLM": "flexspec.api.llm",
    "Chunk": "flexspec.runtime.output",
    "GenerationFailed": "flexspec.runtime.output",
    "GenerationInterrupted": "flexspec.runtime.output",
    "Output": "flexspec.runtime.output",
    "ParallelPlan": "flexspec.parallel",
    "RequestMistake": "flexspec.runtime.output",
    "SamplingParams": "flexspec.config",
    "Strategy": "flexspec.strategy",
    "TokenLogprobs": "flexspec.runtime.logprobs",
    "UsageError": "flexspec.errors",
    "compile": "flexspec.api.compile",
    "json_schema": "flexspec.grammar",
    "load_strategy": "flexspec.strategy",
    "regex": "flexspec.grammar",
    "search": "flexspec.api.search",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("flexspec")
    if name not in _HOMES:
        raise AttributeError(f"module 'flexspec' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
