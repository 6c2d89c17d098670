"""What a folder with a tuned draft model says of its form."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexspec.errors import UsageError

_FILE = "drafter.json"


@dataclass(frozen=True, kw_only=True)
class HeadForm:
    """Sizes of a feature-level head; `states` is how many hidden states of the large model it reads."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    states: int


@dataclass(frozen=True, kw_only=True)
class DraftForm:
    """A draft model: a head, or some layers of the large model, for one with this hidden size and vocabulary."""

    hidden: int
    vocabulary: int
    layers: Sequence[int]
    head: HeadForm | None


def read_draft_description(folder: Path, name: str) -> DraftForm:
    """The form of the draft model in a folder.

    Raises:
        UsageError: if the description is missing or damaged.
    """
    try:
        content: Any = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        head = content["head"]
        form = None
        if head is not None:
            sizes = {field: int(head[field]) for field in ("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim")}
            form = HeadForm(**sizes, states=len(head["states"]))
        llm = content["llm"]
        layers = [int(layer) for layer in content["layers"]]
        return DraftForm(hidden=int(llm["hidden_size"]), vocabulary=int(llm["vocab_size"]), layers=layers, head=form)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"draft model {name}: its {_FILE} can't be read ({error!r}); make it again") from None
