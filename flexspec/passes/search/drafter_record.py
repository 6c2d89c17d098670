"""What drafting costs to know of a drafter."""

from dataclasses import dataclass

from flexspec.passes.search.records import ModelRecord


@dataclass(frozen=True, kw_only=True)
class DrafterRecord:
    """A drafter.

    Attributes:
        name: as `flexspec.compile` takes it.
        model: what it does for a token, its output matrix as wide as what it drafts from; None if it is no model.
        linears: (input, output) columns of linears that it has besides.
        shares_embedding: whether the embedding is the large model's.
        shares_head: whether the output matrix is.
        reads_states: whether it reads the large model's hidden states, and so has to be where they are.
    """

    name: str
    model: ModelRecord | None = None
    linears: tuple[tuple[int, int], ...] = ()
    shares_embedding: bool = False
    shares_head: bool = False
    reads_states: bool = False
