"""What became of one system's drafts, as tables, charts and files show it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from flexspec.runtime.draft_counts import DraftCount, DraftCounts, HitCount


@dataclass(frozen=True, kw_only=True)
class DraftView:
    """All nodes, or those that one drafter proposed.

    Attributes:
        by_depth: by the distance from the root, from 1.
        by_rank: by the place among the children of their parent, from 0.
        hits: by k from 1, how often one of the root's first k children was accepted.
    """

    by_depth: Mapping[int, DraftCount]
    by_rank: Mapping[int, DraftCount]
    hits: Mapping[int, HitCount]

    @classmethod
    def of(cls, counts: DraftCounts, drafter: str | None = None) -> Self:
        """The view of `counts`; None for the drafter is all of them together."""
        return cls(by_depth=counts.by_depth(drafter), by_rank=counts.by_rank(drafter), hits=counts.hits(drafter))

    def to_json(self) -> dict[str, Any]:
        """Lists, one entry a depth, rank or k."""
        return {
            "by_depth": [{"depth": depth, **count._asdict()} for depth, count in self.by_depth.items()],
            "by_rank": [{"rank": rank, **count._asdict()} for rank, count in self.by_rank.items()],
            "hits": [{"k": k, **hit._asdict(), "rate": hit.rate} for k, hit in self.hits.items()],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(
            by_depth={int(one["depth"]): _count(one) for one in content["by_depth"]},
            by_rank={int(one["rank"]): _count(one) for one in content["by_rank"]},
            hits={int(one["k"]): _hit(one) for one in content["hits"]},
        )


@dataclass(frozen=True, kw_only=True)
class DraftReport:
    """One system on one category of prompts.

    Attributes:
        everything: all nodes; those that several drafters proposed count once.
        drafters: by drafter; such nodes count for each.
    """

    everything: DraftView
    drafters: Mapping[str, DraftView]

    @classmethod
    def of(cls, counts: DraftCounts) -> Self:
        """What `counts` tell."""
        return cls(everything=DraftView.of(counts), drafters={name: DraftView.of(counts, name) for name in counts.by_drafter()})

    def to_json(self) -> dict[str, Any]:
        """The view of all nodes, and in it those of each drafter."""
        return self.everything.to_json() | {"drafters": {name: view.to_json() for name, view in self.drafters.items()}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        drafters = {str(name): DraftView.from_json(view) for name, view in content["drafters"].items()}
        return cls(everything=DraftView.from_json(content), drafters=drafters)


def _count(content: Mapping[str, Any]) -> DraftCount:
    return DraftCount(*(int(content[name]) for name in DraftCount._fields))


def _hit(content: Mapping[str, Any]) -> HitCount:
    hit = HitCount(steps=int(content["steps"]), hits=int(content["hits"]), is_complete=bool(content["is_complete"]))
    if not 0 <= hit.hits <= hit.steps or not hit.steps:
        raise ValueError(f"{hit.hits} hits in {hit.steps} steps")
    return hit
