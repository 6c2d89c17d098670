"""What drafting takes: equation 10 for every tree worth comparing."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from flexspec.acceptance import AcceptanceTable
from flexspec.parallel import OWN_DEVICE
from flexspec.passes.search.assign import Assignment, assignment
from flexspec.passes.search.case import DraftCosts
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.memory import kv_bytes, kv_slots
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.space import DraftOption, Workload
from flexspec.passes.search.stages import Floats
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.trees import NO_TREE, GrownTree, chances_of, tree_choices

ALONE = (0,)
"""The group of a device that shares nothing."""


class Drafter:
    """A drafter's passes, which one device runs."""

    def __init__(self, record: DrafterRecord) -> None:
        self.record = record

    @cached_property
    def ways(self) -> list[tuple[int, Assignment]]:
        """How often each place is passed through, and its works."""
        model = self.record.model
        assert model is not None
        places = [(1, model.embedding), (1, model.head)]
        places += [(model.layers.count(kind), block) for kind, block in model.blocks.items()]
        return [(number, assignment(block, ["replicated"] * len(block.operators), 1)) for number, block in places]

    def seconds(self, costs: PassCosts, times: OperatorTimes, rows: Sequence[int]) -> Floats:
        """[sizes] of a pass over so many rows each."""
        total = np.sum([number * costs.assignment(way, ALONE) for number, way in self.ways], axis=0)
        for columns_in, columns_out in self.record.linears:
            total = total + np.array([times.linear(one, columns_in, columns_out) for one in rows])
        return np.asarray(total)

    def num_bytes(self, workload: Workload, requests: int, element_bytes: int, *, is_beside: bool) -> float:
        """Weights and KV cache; beside the model, it uses what it shares with it."""
        model = self.record.model
        if model is None:
            return 0.0
        slots = kv_slots(workload, workload.max_tree)
        one = kv_bytes(kv_heads=model.kv_heads, head_dim=model.head_dim, slots=slots, requests=requests, element_bytes=element_bytes)
        return float(self._elements[is_beside] * element_bytes + one * len(model.layers))

    @cached_property
    def _elements(self) -> tuple[int, int]:
        """Of the weights, on a device of its own and beside the model."""
        model, record = self.record.model, self.record
        assert model is not None
        layers = sum(model.blocks[kind].weights for kind in model.layers) + sum(a * b for a, b in record.linears)
        embedding, head = model.embedding.weights + model.position_weights, 0 if model.tied else model.head.weights
        beside = layers + (0 if record.shares_embedding else embedding) + (0 if record.shares_head else head)
        return layers + embedding + head, beside


class Drafting:
    """The trees of sets of drafters, and what they take.

    Args:
        drafters: all of them.
        workload: what they draft for.
        acceptance: of the drafters.
    """

    def __init__(self, drafters: Sequence[DrafterRecord], workload: Workload, acceptance: AcceptanceTable) -> None:
        self.drafters = {record.name: Drafter(record) for record in drafters}
        self.workload = workload
        self._chances = {record.name: chances_of(acceptance, record.name) for record in drafters}
        self._trees: dict[tuple[str, ...], tuple[GrownTree, ...]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of all drafters."""
        return tuple(self.drafters)

    @property
    def models(self) -> tuple[str, ...]:
        """Those that are models."""
        return tuple(name for name, one in self.drafters.items() if one.record.model is not None)

    @property
    def movable(self) -> tuple[str, ...]:
        """Those that can have a device of their own."""
        return tuple(name for name in self.models if not self.drafters[name].record.reads_states)

    def trees(self, names: tuple[str, ...]) -> tuple[GrownTree, ...]:
        """The trees of a set of drafters that are worth comparing; none of drafters that can draft nothing."""
        if names not in self._trees:
            chances = {name: self._chances[name] for name in names}
            models = [name for name in names if name in self.models]
            found = tree_choices(chances, models, self.workload.max_tree) if names else [NO_TREE]
            # A set one of whose drafters has no node is another set's.
            self._trees[names] = tuple(tree for tree in found if all(tree.depth(name) for name in names))
        return self._trees[names]

    def compare_only(self, names: tuple[str, ...], trees: Sequence[GrownTree]) -> None:
        """From now on these are the trees of a set of drafters that are compared, whether they are worth it or not."""
        self._trees[names] = tuple(trees)

    def costs(
        self,
        option: DraftOption,
        passes: "DraftPasses",
        *,
        in_flight: int,
        element_bytes: int,
        message_seconds: float,
    ) -> DraftCosts:
        """Of an option.

        Args:
            option: drafters and places.
            passes: what their passes take.
            in_flight: requests of all micro-batches of a replica.
            element_bytes: of a weight.
            message_seconds: to a device of a drafter's own and back.
        """
        trees = self.trees(option.drafters)
        beside, apart = np.zeros(len(trees)), np.zeros(len(trees))
        beside_bytes, apart_bytes = 0.0, 0.0
        for name, where in option.placement:
            own = where == OWN_DEVICE
            seconds = passes.seconds(name, trees, option.drafters)
            size = self.drafters[name].num_bytes(self.workload, in_flight, element_bytes, is_beside=not own)
            if own:
                apart, apart_bytes = np.maximum(apart, seconds + message_seconds), max(apart_bytes, size)
            else:
                beside, beside_bytes = beside + seconds, beside_bytes + size
        host = passes.host(trees, option.drafters)
        return DraftCosts(trees=trees, host=host, beside=beside, apart=apart, beside_bytes=beside_bytes, apart_bytes=apart_bytes)


class DraftPasses:
    """Seconds of the drafters' passes for micro-batches of some size.

    Args:
        drafting: the drafters.
        times: of operators.
        collectives: between devices.
        requests: of a micro-batch.
    """

    def __init__(self, drafting: Drafting, times: OperatorTimes, collectives: Collectives, requests: int) -> None:
        self._drafting, self._times, self._collectives, self._requests = drafting, times, collectives, requests
        self._found: dict[tuple[str, tuple[str, ...]], Floats] = {}
        self._widths: dict[str, Floats] = {}
        self._hosts: dict[tuple[str, ...], Floats] = {}

    def host(self, trees: Sequence[GrownTree], drafters: tuple[str, ...]) -> Floats:
        """[trees] of a step, passes of drafters not counted."""
        if drafters not in self._hosts:
            times = self._times.hardware.host_times
            found = [times.seconds(requests=self._requests, nodes=self._requests * tree.size, levels=0) for tree in trees]
            self._hosts[drafters] = np.array(found)
        return self._hosts[drafters]

    def seconds(self, name: str, trees: Sequence[GrownTree], drafters: tuple[str, ...]) -> Floats:
        """[trees] that a drafter takes to draft its part: a pass a level, the first over what the last step emitted."""
        if self._drafting.drafters[name].record.model is None:
            return np.zeros(len(trees))  # lookups are part of the host's time
        key = (name, drafters)
        if key not in self._found:
            by_width = self._by_width(name)
            level = self._times.hardware.host_times.seconds(requests=0, nodes=0, levels=1) - self._times.hardware.host_times.seconds(
                requests=0, nodes=0, levels=0
            )
            totals = []
            for tree in trees:
                levels = tree.levels[name]
                widths = [min(max(round(tree.expected), 1), len(by_width)), *levels[:-1]]
                totals.append(sum(float(by_width[width - 1]) for width in widths) + level * len(levels))
            self._found[key] = np.array(totals)
        return self._found[key]

    def _by_width(self, name: str) -> Floats:
        """[widths] of a pass over 1, 2, … tokens of each request."""
        if name not in self._widths:
            workload = self._drafting.workload
            tokens = range(1, max(workload.max_tree, 1) + 1)
            costs = PassCosts(
                self._times,
                self._collectives,
                tokens=tokens,
                requests=self._requests,
                context=workload.mean_context,
            )
            self._widths[name] = self._drafting.drafters[name].seconds(costs, self._times, [self._requests * one for one in tokens])
        return self._widths[name]
