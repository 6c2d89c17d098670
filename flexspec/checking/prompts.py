"""The prompts of a check when none are given: they repeat themselves in part, so that lookup drafts are both right and wrong."""

from flexspec.bench.prompt_text import PromptText

_TEXTS = (
    "List ten fruits, then list the same ten fruits again.",
    "Write a short story about a cat that learns to fly.",
    "Explain why the sky is blue, then explain it again to a child.",
    "Write a Python function that adds two numbers, and one that multiplies two numbers.",
)

BUILT_IN = tuple(PromptText(id=str(number), category="built-in", text=text, chat=True) for number, text in enumerate(_TEXTS, start=1))
