"""The ways in which a whole model can be divided over the devices of a stage."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from flexspec.passes.search.assign import Assigner, assignment, kept_whole, why_not
from flexspec.passes.search.records import BlockRecord, ModelRecord
from flexspec.passes.search.work import Assignment, Price

EMBEDDING = "embedding"
HEAD = "head"


@dataclass(frozen=True, kw_only=True, eq=False)
class Division:
    """One way.

    Attributes:
        tp: devices of a stage.
        blocks: of each kind of block.
        embedding: of what comes before the layers.
        head: of what comes after them.
    """

    tp: int
    blocks: Mapping[str, Assignment]
    embedding: Assignment
    head: Assignment

    @cached_property
    def places(self) -> dict[str, Assignment]:
        """Of every place by name."""
        return {EMBEDDING: self.embedding, HEAD: self.head, **self.blocks}

    @property
    def partition(self) -> dict[str, tuple[str, ...]]:
        """As a plan has it."""
        return {place: way.names for place, way in self.places.items() if way.is_divided} if self.tp > 1 else {}

    @property
    def kv_heads(self) -> int:
        """Of the KV cache on the fullest device."""
        return max(way.kv_heads for way in self.blocks.values())


def divisions(model: ModelRecord, tp: int, prices: Iterable[Price]) -> list[Division]:
    """The ways that are best for any of some passes in time, weights or KV cache; none if the model can't be divided so far.

    Args:
        model: what is divided.
        tp: devices of a stage.
        prices: of passes of different sizes.
    """
    if any(why_not(block, tp) is not None for block in model.blocks.values()):
        return []
    prices = list(prices)
    kinds = list(model.blocks)
    blocks = [_ways(model.blocks[kind], tp, prices) for kind in kinds]
    embeddings, heads = _ways(model.embedding, tp, prices), _ways(model.head, tp, prices)
    found = []
    for *ways, embedding, head in product(*blocks, embeddings, heads):
        if len({way.kv_heads for way in ways}) == 1:  # one cache holds the heads of all layers
            found.append(Division(tp=tp, blocks=dict(zip(kinds, ways, strict=True)), embedding=embedding, head=head))
    return found


def notes_on(model: ModelRecord, degrees: Sequence[int]) -> list[str]:
    """Why degrees are left out, and which keep attention whole: the smallest of them each."""
    notes = []
    for block in model.blocks.values():
        for reason in (why_not, kept_whole):
            told = next((text for tp in degrees if (text := reason(block, tp)) is not None), None)
            if told is not None and told not in notes:
                notes.append(told)
    return notes


def _ways(block: BlockRecord, tp: int, prices: Sequence[Price]) -> list[Assignment]:
    if why_not(block, tp) is not None or tp == 1:
        return [assignment(block, ["replicated"] * len(block.operators), tp)]
    found: dict[tuple[str, ...], Assignment] = {}
    assigner = Assigner(block, tp)
    for price in prices:
        for way in assigner.ways(price):
            found.setdefault(way.names, way)
    return list(found.values())
