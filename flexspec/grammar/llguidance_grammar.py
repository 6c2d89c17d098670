"""JSON schemas and regular expressions as grammars, which the package llguidance turns into automata over tokens."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flexspec.errors import UsageError
from flexspec.grammar.base import GrammarState


@dataclass(frozen=True)
class LlguidanceGrammar:
    """A grammar for llguidance; make one with `json_schema` or `regex`.

    Attributes:
        kind: the language of `text`.
        text: the schema as JSON, or the pattern.
    """

    kind: Literal["json_schema", "regex"]
    text: str

    def __str__(self) -> str:
        return f"{self.kind}({_brief(self.text)})"

    def start(self, tokenizer: Any, *, vocab_limit: int, end_token_ids: Sequence[int]) -> GrammarState:
        """As `Grammar.start`; what is costly is kept for further requests."""
        try:
            from flexspec.grammar.llguidance_matcher import start
        except ModuleNotFoundError as error:
            if error.name != "llguidance":
                raise
            raise UsageError(f"grammar={self} needs the package llguidance: pip install 'flexspec[grammar]'") from error
        return start(self, tokenizer, vocab_limit=vocab_limit, end_token_ids=end_token_ids)


def json_schema(schema: Mapping[str, Any] | str) -> LlguidanceGrammar:
    """The grammar of the JSON texts that are valid by `schema`, a JSON Schema as a dict or as JSON text.

    White space is allowed wherever JSON allows it, unless the schema's `x-guidance` says otherwise:
    `{"x-guidance": {"whitespace_flexible": False}, …}`.

    Raises:
        UsageError: if it is no JSON object. What llguidance does not accept is refused when a request with it is added.
    """
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else schema
        if not isinstance(parsed, Mapping):
            raise UsageError(f"json_schema({_brief(schema)}) is not allowed: give a dict, or the text of a JSON object")
        return LlguidanceGrammar("json_schema", json.dumps(parsed))
    except UsageError:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"json_schema({_brief(schema)}) is not allowed: {error}; give a dict of JSON values, or JSON text") from error


def regex(pattern: str) -> LlguidanceGrammar:
    r"""The grammar of the texts that match `pattern` as a whole, in Rust's syntax: no look-around and no back references.

    Raises:
        UsageError: if it is no string. What llguidance does not accept is refused when a request with it is added.
    """
    if not isinstance(pattern, str):
        raise UsageError(f"regex({_brief(pattern)}) is not allowed: give the pattern as a string")
    return LlguidanceGrammar("regex", pattern)


def _brief(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # too deep, or a number of too many digits
        text = type(value).__name__
    return text if len(text) <= 80 else text[:79] + "…"
