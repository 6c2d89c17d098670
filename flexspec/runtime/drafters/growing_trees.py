"""Proposals that are left on the device that grows them."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch

from flexspec.codegen.batch import Int32
from flexspec.codegen.device_time import DeviceMoment
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.drafters.device_growth import DeviceGrowth
from flexspec.runtime.drafters.grades import grade
from flexspec.runtime.token_tree import Origin, TokenTree


class GrowingTrees:
    """One drafter's trees for some requests, all of which grow on one device or have no more than a root.

    Args:
        drafter: its name.
        requests: the requests.
        growth: of the trees.
        began: before anything was done for them.
        ended: when they are grown.
        finish: builds the proposals, in the order of the requests, once the growth is followed; it is told what is wrong with the model.

    Attributes:
        depth: most levels below the roots.
        most_nodes: [requests] drafted nodes that each tree may have.
        ended: as given.
    """

    def __init__(
        self,
        drafter: str,
        requests: Sequence[DraftRequest],
        growth: DeviceGrowth,
        *,
        began: DeviceMoment,
        ended: DeviceMoment,
        finish: Callable[[Exception | None], list[TokenTree]],
    ) -> None:
        self.depth = growth.depth
        self.most_nodes = [growth.most_nodes(request.request_id) for request in requests]
        self._drafter = drafter
        self._requests = requests
        self._growth = growth
        self._finish = finish
        self._began = began
        self.ended = ended

    @property
    def packed(self) -> torch.Tensor:
        """[n] int32, on the device: what `proposals` takes, fetched to the host."""
        return self._growth.packed

    @property
    def seconds(self) -> float:
        """That drafting took, once the device is past it."""
        return self._began.seconds_until(self.ended)

    def best_nodes(self, sizes: Sequence[int]) -> torch.Tensor:
        """[sum of sizes, columns] on the device, as `flexspec.codegen.device_trees` has them: so many of each tree, the likeliest paths.

        Where fewer nodes grew, the last are padding.
        """
        return self._growth.best_nodes({request.request_id: size for request, size in zip(self._requests, sizes, strict=True)})

    def proposals(self, packed: Int32) -> list[TokenTree]:
        """As `Drafter.propose` gives them."""
        return self._finish(self._growth.follow(packed))

    def best_trees(self, sizes: Sequence[int]) -> list[TokenTree]:
        """The trees of `best_nodes`, without padding, after `proposals`."""
        return [self._tree(request, size) for request, size in zip(self._requests, sizes, strict=True)]

    def _tree(self, request: DraftRequest, size: int) -> TokenTree:
        nodes = self._growth.read_nodes(request.request_id, size) if size else []
        grades = [grade(node.share) for node in nodes]
        return TokenTree(
            tokens=[request.tokens[-1], *(node.token for node in nodes)],
            parents=[-1, *(node.parent for node in nodes)],
            grades=[0, *grades],
            origins=[[], *([Origin(self._drafter, node.rank, degree)] for node, degree in zip(nodes, grades, strict=True))],
        )


@runtime_checkable
class DeviceDrafter(Protocol):
    """A drafter whose trees may grow on a device."""

    @property
    def device(self) -> torch.device:
        """Where."""
        ...

    def begin_on_device(self, requests: Sequence[DraftRequest]) -> GrowingTrees | list[TokenTree]:
        """As `Drafter.propose`, but without waiting for the trees where all of them grow on one device."""
        ...
