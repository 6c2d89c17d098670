"""Several drafters as one."""

from collections.abc import Sequence

from flexspec.runtime.drafters.base import Drafter, DraftRequest
from flexspec.runtime.drafters.checked import CheckedDrafter
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder


class MergeDrafter:
    """Lets every drafter propose and folds the trees into one (SpecInfer, section 3, merge-based construction).

    At a node the trials of the first drafter come first. Stochastic verification needs an order that is fixed before
    anything is drawn.

    Args:
        drafters: two or more with different names; drafters that draw key their draws by name.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        names = [drafter.name for drafter in drafters]
        assert len(set(names)) == len(names), f"drafters share a name: {names}"
        self.name = "+".join(names)
        self._drafters = [CheckedDrafter(drafter) for drafter in drafters]

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """As `Drafter.propose`; a tree may have as many nodes as all drafters' trees together."""
        builders = [TreeBuilder(request.tokens[-1]) for request in requests]
        for drafter in self._drafters:
            for builder, tree in zip(builders, drafter.propose(requests), strict=True):
                builder.graft(tree)
        return [builder.build() for builder in builders]

    def release(self, request_id: int) -> None:
        """As `Drafter.release`."""
        for drafter in self._drafters:
            drafter.release(request_id)
