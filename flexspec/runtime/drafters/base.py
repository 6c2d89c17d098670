"""What every drafter offers."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch

from flexspec.runtime.sampling import RequestSampler
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import Tree


class Children(Enum):
    """What a verifier needs a node's children to be, for the text to keep the LLM's distribution.

    Attributes:
        ANY: whatever is likeliest to be accepted, the request's shared noise counted in (greedy and coupled verification).
        CHOSEN: the likeliest ones by the drafter's own distribution, nothing drawn: point masses.
        DRAWN: drawn one after the other from the drafter's distribution, each with that distribution in `TokenTree.draws`;
            a token may come twice.
        DISTINCT: likewise, but without those drawn before at this node, each with what was left of the distribution.
    """

    ANY = "any"
    CHOSEN = "chosen"
    DRAWN = "drawn"
    DISTINCT = "distinct"

    @property
    def are_drawn(self) -> bool:
        """Whether they come from the drafter's distribution by chance."""
        return self in (Children.DRAWN, Children.DISTINCT)


class Chances(Protocol):
    """What is known of a drafter's past."""

    def chance(self, grade: int, rank: int, depth: int) -> float:
        """A careful estimate of P(a node is accepted | its parent is).

        Args:
            grade: the drafter's confidence class of the node.
            rank: its place among the children this drafter gives its parent, from 0.
            depth: its distance from the root, from 1.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class DraftRequest:
    """A request that wants drafts.

    Attributes:
        request_id: names the request from its first draft until `release`.
        tokens: its whole text so far, prompt included; the last token is the root of the tree.
        sampler: how the request chooses tokens; drafters share its noise.
        spec: the tree to fill, already shortened to what the request may still emit; never empty. Static widths are filled
            level by level; within the limits of an adaptive tree the drafter proposes what it thinks likeliest, and the
            best of all proposals are verified.
        children: what the verifier needs the children at a node to be. Model-free drafters choose, whatever is asked for.
        prompt_length: how many of `tokens` are the prompt.
        chances: what past acceptance says about this drafter's nodes; None for static trees.
        worth: the least chance, from the root on, of a node whose children are worth another pass of a draft model.
    """

    request_id: int
    tokens: Sequence[int]
    sampler: RequestSampler
    spec: Tree
    children: Children = Children.ANY
    prompt_length: int = 0
    chances: Chances | None = None
    worth: float = 0.0


class Drafter(Protocol):
    """Proposes a token tree for each request."""

    name: str

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """One tree a request, in their order; a tree of the root alone where there is nothing to propose."""
        ...

    def release(self, request_id: int) -> None:
        """Forget a request that ended, or was preempted and may come again as if it were new; unknown ids are ignored."""
        ...


@runtime_checkable
class StateReader(Protocol):
    """A drafter that wants the LLM's hidden states too."""

    def read_states(self, request_id: int, start: int, states: torch.Tensor) -> None:
        """Text of a request has become final, and the LLM has seen it.

        It is called after every pass for what that pass added: positions come in order, without gaps, from 0 on, and from 0 again after
        `release`. When drafts are asked for, the states of all of the text but its last token, the root, have come.

        Args:
            request_id: as in `DraftRequest`.
            start: position in the text of the first state.
            states: float32 [n, hidden size of the LLM] of the positions from `start` on; the reader may keep it.
        """
        ...
