"""Which prompts of a benchmark run, and in which groups."""

from collections.abc import Sequence
from dataclasses import dataclass

from flexspec.api.llm import LLM
from flexspec.bench.prompt_groups import BenchPrompt, PromptGroup, full_groups, warm_up_groups
from flexspec.bench.prompt_text import PromptText, encode_text
from flexspec.bench.report import ALL
from flexspec.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class PromptSelection:
    """What runs, and what does not.

    Attributes:
        groups: measured.
        warm_up: run before, unmeasured.
        too_long: ids of prompts that don't fit.
        too_few: ids of prompts at the end that were too few for another group.
    """

    groups: Sequence[PromptGroup]
    warm_up: Sequence[PromptGroup]
    too_long: Sequence[str]
    too_few: Sequence[str]


def check_prompts(texts: Sequence[PromptText], batches: Sequence[int]) -> None:
    """Find mistakes before they cost a compilation.

    Raises:
        UsageError: if the prompts are too few for a single group of some batch size, or a category has the name of all together.
    """
    if len(texts) < max(batches):
        raise _too_few(len(texts), max(batches))
    categories = {text.category for text in texts}
    if ALL in categories and len(categories) > 1:
        raise UsageError(f"category {ALL!r} is not allowed: reports call all prompts together that; give it another name in the file")


def select_prompts(
    llm: LLM, texts: Sequence[PromptText], warm_up_texts: Sequence[PromptText], *, room: int, batch: int, warm_up: int
) -> PromptSelection:
    """Encode the prompts and group those that fit.

    Args:
        llm: whose tokenizer encodes them.
        texts: to be measured, in this order.
        warm_up_texts: to warm up with; without any that fit, those that are measured.
        room: most tokens of a prompt.
        batch: prompts of a group.
        warm_up: groups to warm up with.

    Raises:
        UsageError: if no prompt fits, or they are too few for a single group.
    """
    prompts, too_long = _encode(llm, texts, room)
    if not prompts:
        raise UsageError(
            f"none of the {len(texts)} prompts leaves room for the new tokens: prompts of up to {room} tokens fit; give shorter ones"
        )
    groups, too_few = full_groups(prompts, batch)
    if not groups:
        raise _too_few(len(prompts), batch)
    others, _ = _encode(llm, warm_up_texts, room)
    return PromptSelection(groups=groups, warm_up=warm_up_groups(others or prompts, batch, warm_up), too_long=too_long, too_few=too_few)


def _too_few(count: int, batch: int) -> UsageError:
    return UsageError(f"{count} prompts are too few for batch={batch}: give more prompts, or a smaller batch")


def _encode(llm: LLM, texts: Sequence[PromptText], room: int) -> tuple[list[BenchPrompt], list[str]]:
    """The prompts of at most `room` tokens, and the ids of the others."""
    prompts, too_long = [], []
    for text in texts:
        ids = encode_text(llm, text)
        if len(ids) > room:
            too_long.append(text.id)
        else:
            prompts.append(BenchPrompt(id=text.id, category=text.category, token_ids=ids))
    return prompts, too_long
