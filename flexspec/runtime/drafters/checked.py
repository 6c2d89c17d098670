"""A drafter whose faults cost speed and never text."""

import warnings
from collections.abc import Callable, Sequence

import torch

from flexspec.runtime.drafters.base import Drafter, DraftRequest, StateReader
from flexspec.runtime.drafters.growing_trees import DeviceDrafter, GrowingTrees
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import is_well_formed, with_plain_numbers


class CheckedDrafter:
    """Puts the root alone in the place of every tree that is missing or does not continue its text, and warns once.

    A drafter that raises steps aside for that step: whatever it does wrong, the text goes on without it. One that fails to read
    a request's hidden states is not asked for that request any more.

    Args:
        drafter: anybody's.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._has_warned = False
        self._unread: set[int] = set()  # requests whose states did not get through

    @property
    def reads_states(self) -> bool:
        """Whether the drafter wants the LLM's hidden states."""
        return isinstance(self._drafter, StateReader)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`."""
        trees = self._asked(self._drafter.propose, requests)
        assert not isinstance(trees, GrowingTrees)
        return trees

    def begin_on_device(self, requests: Sequence[DraftRequest], device: torch.device) -> GrowingTrees | list[TokenTree]:
        """As `DeviceDrafter.begin_on_device`; drafters that have none, or another device, propose."""
        drafter = self._drafter
        is_read = self._unread.isdisjoint(request.request_id for request in requests)
        if isinstance(drafter, DeviceDrafter) and drafter.device == device and is_read:
            return self._asked(drafter.begin_on_device, requests)
        return self.propose(requests)

    def read_states(self, request_id: int, start: int, states: torch.Tensor) -> None:
        """As `StateReader.read_states`, of a drafter that reads them."""
        assert isinstance(self._drafter, StateReader), f"the drafter {self.name!r} reads no states"
        if request_id in self._unread:
            return
        try:
            self._drafter.read_states(request_id, start, states)
        except Exception as error:
            self._unread.add(request_id)
            self._warn(f"raised {type(error).__name__} when it was given hidden states: {error}")

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        self._unread.discard(request_id)
        try:
            self._drafter.release(request_id)
        except Exception as error:
            self._warn(f"raised {type(error).__name__} when a request ended: {error}")

    def _asked(
        self, ask: Callable[[Sequence[DraftRequest]], GrowingTrees | list[TokenTree]], requests: Sequence[DraftRequest]
    ) -> GrowingTrees | list[TokenTree]:
        trees = [TokenTree.root(request.tokens[-1]) for request in requests]
        places = [place for place, request in enumerate(requests) if request.request_id not in self._unread]
        asked = [requests[place] for place in places]
        if not asked:
            return trees
        try:
            proposed = ask(asked)
        except Exception as error:
            self._warn(f"raised {type(error).__name__}: {error}")
            return trees
        if isinstance(proposed, GrowingTrees):
            return proposed
        if not isinstance(proposed, Sequence) or len(proposed) != len(asked):
            returned = f"{len(proposed)} trees" if isinstance(proposed, Sequence) else repr(proposed)
            self._warn(f"returned {returned} for {len(asked)} requests")
            return trees
        for place, request, tree in zip(places, asked, proposed, strict=True):
            checked = self._checked(tree, request)
            if checked is None:
                self._warn("returned a tree that does not continue its text")
            else:
                trees[place] = checked
        return trees

    def _checked(self, tree: object, request: DraftRequest) -> TokenTree | None:
        if not isinstance(tree, TokenTree):
            return None
        try:
            plain = with_plain_numbers(tree)
            return plain if is_well_formed(plain, root=request.tokens[-1], vocab_limit=request.sampler.vocab_limit) else None
        except (TypeError, ValueError, AttributeError, IndexError, KeyError):
            return None  # its parts are not even of the right types

    def _warn(self, fault: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            message = f"the drafter {self.name!r} {fault}; such steps decode without its drafts (said once)"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
