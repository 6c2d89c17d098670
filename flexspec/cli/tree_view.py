"""A token tree drawn in the terminal."""

from collections.abc import Sequence

from rich.text import Text
from rich.tree import Tree

from flexspec.runtime.detokenizer import Tokenizer
from flexspec.runtime.output import StepRecord

ACCEPTED = "bold green"
_REJECTED = "dim red"
_BONUS = "bold cyan"


def most_telling(records: Sequence[StepRecord]) -> StepRecord | None:
    """The step whose tree is most worth a look: branches, then something accepted and something rejected; None if none drafted."""
    drafted = [record for record in records if record.tree.num_drafted]
    return max(drafted, key=_interest, default=None)


def draw(record: StepRecord, tokenizer: Tokenizer) -> Tree:
    """The tree of one step: the accepted path, what was rejected, and the bonus token that the LLM added."""
    tokens = record.tree.tokens
    branches = [Tree(Text(_shown(tokens[0], tokenizer), style="bold"), guide_style="dim")]
    accepted = set(record.path)
    for node in range(1, len(tokens)):
        label = f"{_shown(tokens[node], tokenizer)} accepted" if node in accepted else f"{_shown(tokens[node], tokenizer)} rejected"
        style = ACCEPTED if node in accepted else _REJECTED
        branches.append(branches[record.tree.parents[node]].add(Text(label, style=style)))
    for token in record.token_ids[len(record.path) - 1 :]:
        branches[record.path[-1]].add(Text(f"{_shown(token, tokenizer)} added by the model", style=_BONUS))
    return branches[0]


def _interest(record: StepRecord) -> tuple[int, int]:
    accepted = len(record.path) - 1
    rejected = record.tree.num_drafted - accepted
    branches = sum(len(children) > 1 for children in record.tree.children())
    return 2 * min(accepted, 3) + 3 * (rejected > 0) + 2 * (branches > 0 and accepted > 0), accepted


def _shown(token: int, tokenizer: Tokenizer) -> str:
    return repr(tokenizer.decode([token], skip_special_tokens=False))
