"""What every drafter offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeSpec


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """A request that wants drafts.

    Attributes:
        request_id: names the request from its first draft until `release`.
        tokens: its whole text so far, prompt included; the last token is the root of the tree.
        sampler: how the request chooses tokens; drafters share its noise.
        spec: the widths to fill, already shortened to what the request may still emit; never empty.
        draws: True if the verifier needs children drawn from the drafter's distribution, with that distribution
            recorded in `TokenTree.draws`; False if any children will do (greedy and coupled verification).
    """

    request_id: int
    tokens: Sequence[int]
    sampler: RequestSampler
    spec: TreeSpec
    draws: bool


class Drafter(Protocol):
    """Proposes a token tree for each request."""

    name: str

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """One tree a request, in their order; a tree of the root alone where there is nothing to propose."""
        ...

    def release(self, request_id: int) -> None:
        """Forget a request that ended or will not be drafted for any more; unknown ids are ignored."""
        ...
