"""Compiling a model for a command."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

from rich.console import Console

from flexspec import compile
from flexspec.api.llm import LLM


def compile_model(model: str, ssms: Sequence[str] | None, **options: Any) -> LLM:
    """`flexspec.compile`, which takes the same arguments, telling a terminal that it is at work and how long it took."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    began = perf_counter()
    if console.is_terminal:
        console.print(f"compiling {model} …", style="dim", markup=False)
    llm = compile(model, ssms, **options)
    if console.is_terminal:
        console.print(f"ready after {perf_counter() - began:.1f} s", style="dim")
    return llm
