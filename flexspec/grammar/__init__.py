"""What a request's new text may be: a JSON schema, a regular expression, or a user's own grammar."""

from flexspec.grammar.base import Grammar, GrammarState
from flexspec.grammar.llguidance_grammar import LlguidanceGrammar, json_schema, regex

__all__ = ["Grammar", "GrammarState", "LlguidanceGrammar", "json_schema", "regex"]
