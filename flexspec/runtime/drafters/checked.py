"""A drafter whose faults cost speed and never text."""

import warnings
from collections.abc import Sequence

from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import is_well_formed, with_plain_numbers


class CheckedDrafter:
    """Puts the root alone in the place of every tree that is missing or does not continue its text, and warns once.

    A drafter that raises steps aside for that step: whatever it does wrong, the text goes on without it.

    Args:
        drafter: anybody's.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.name = drafter.name
        self._drafter = drafter
        self._has_warned = False

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`."""
        trees = [TokenTree.root(request.tokens[-1]) for request in requests]
        try:
            proposed = self._drafter.propose(requests)
        except Exception as error:
            self._warn(f"raised {type(error).__name__}: {error}")
            return trees
        if not isinstance(proposed, Sequence) or len(proposed) != len(requests):
            returned = f"{len(proposed)} trees" if isinstance(proposed, Sequence) else repr(proposed)
            self._warn(f"returned {returned} for {len(requests)} requests")
            return trees
        for place, (request, tree) in enumerate(zip(requests, proposed, strict=True)):
            checked = self._checked(tree, request)
            if checked is None:
                self._warn("returned a tree that does not continue its text")
            else:
                trees[place] = checked
        return trees

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        try:
            self._drafter.release(request_id)
        except Exception as error:
            self._warn(f"raised {type(error).__name__} when a request ended: {error}")

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
