"""flexspec: a graph compiler for language models that drafts token trees and verifies them in one pass."""

from flexspec.api.compile import compile
from flexspec.api.llm import LLM
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.output import Chunk, GenerationInterrupted, Output
from flexspec.strategy import Strategy, load_strategy

__all__ = ["LLM", "Chunk", "GenerationInterrupted", "Output", "SamplingParams", "Strategy", "UsageError", "compile", "load_strategy"]
