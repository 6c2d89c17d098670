"""What drafting takes: equation 10 for every tree worth comparing."""

from collections.abc import Sequence
from functools import cache, cached_property

import numpy as np

from flexspec.acceptance import AcceptanceTable
from flexspec.parallel import OWN_DEVICE
from flexspec.passes.search.assign import assignment
from flexspec.passes.search.case import DraftCosts
from flexspec.passes.search.collectives import Collectives
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.memory import LOGIT_BYTES, kv_bytes, kv_slots
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.space import DraftOption, Workload
from flexspec.passes.search.stages import Floats, Ints
from flexspec.passes.search.times import OperatorTimes
from flexspec.passes.search.trees import NO_TREE, GrownTree, chances_of, tree_choices
from flexspec.passes.search.work import Assignment

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

    def seconds(self, costs: PassCosts, times: OperatorTimes, rows: Ints) -> Floats:
        """[requests, sizes] of a pass over so many rows each."""
        total = np.sum([number * costs.assignment(way, ALONE) for number, way in self.ways], axis=0)
        for columns_in, columns_out in self.record.linears:
            total = total + times.linear(rows, columns_in, columns_out)
        return np.asarray(total)

    def num_bytes(self, workload: Workload, requests: Ints, element_bytes: int, cache_bytes: int, *, is_beside: bool) -> Floats:
        """Weights and KV cache, for numbers of requests; beside the model, it uses what it shares with it."""
        model = self.record.model
        if model is None:
            return np.zeros(requests.shape)
        slots = kv_slots(workload, workload.max_tree)
        one = kv_bytes(kv_heads=model.kv_heads, head_dim=model.head_dim, slots=slots, requests=requests, element_bytes=cache_bytes)
        return np.asarray(self._elements[is_beside] * element_bytes + one * len(model.layers))

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
        rows: Ints,
        in_flight: Ints,
        element_bytes: int,
        cache_bytes: int,
        driver: tuple[int, int] | None,
    ) -> DraftCosts:
        """Of an option, for several micro-batches.

        Args:
            option: drafters and places.
            passes: what their passes take.
            rows: [micro-batches] their place among those that `passes` has.
            in_flight: [micro-batches] requests of all that are under way at once.
            element_bytes: of a weight.
            cache_bytes: of an element of a KV cache.
            driver: a driver, and a device of a drafter's own; None if none has one.
        """
        trees = self.trees(option.drafters)
        beside, apart = np.zeros((2, len(rows), len(trees)))
        beside_bytes, apart_bytes = np.zeros((2, len(rows), 1))
        for name, where in option.placement:
            own = where == OWN_DEVICE
            seconds = passes.seconds(name, option.drafters)[rows]
            size = self.drafters[name].num_bytes(self.workload, in_flight[:, None], element_bytes, cache_bytes, is_beside=not own)
            if own:
                assert driver is not None
                seconds = seconds + passes.messages(name, option.drafters, driver)[rows]
                apart, apart_bytes = np.maximum(apart, seconds), np.maximum(apart_bytes, size)
            else:
                beside, beside_bytes = beside + seconds, beside_bytes + size
        host = passes.host(option.drafters)[rows]
        return DraftCosts(trees=trees, host=host, beside=beside, apart=apart, beside_bytes=beside_bytes, apart_bytes=apart_bytes)


class DraftPasses:
    """Seconds of the drafters' passes for micro-batches of several sizes.

    Args:
        drafting: the drafters.
        times: of operators.
        collectives: between devices.
        requests: [requests] of a micro-batch.
    """

    def __init__(self, drafting: Drafting, times: OperatorTimes, collectives: Collectives, requests: Sequence[int]) -> None:
        self._drafting, self._times, self._collectives = drafting, times, collectives
        self._requests = np.array(requests, dtype=np.intp)[:, None]
        # Each of these depends on its arguments alone, and is asked for over and over.
        self.host = cache(self._host)
        self.seconds = cache(self._seconds)
        self.messages = cache(self._messages)
        self._by_width = cache(self._new_by_width)

    def _host(self, drafters: tuple[str, ...]) -> Floats:
        """[requests, trees] of a step, passes of drafters not counted."""
        nodes = self._requests * np.array([tree.size for tree in self._drafting.trees(drafters)], dtype=np.intp)
        return np.asarray(self._times.hardware.host_times.seconds(requests=self._requests, nodes=nodes))

    def _seconds(self, name: str, drafters: tuple[str, ...]) -> Floats:
        """[requests, trees] that a drafter takes to draft its part: a pass a level, the first over what the last step emitted."""
        trees = self._drafting.trees(drafters)
        if self._drafting.drafters[name].record.model is None:
            return np.zeros((len(self._requests), len(trees)))  # lookups are part of the host's time
        by_width = self._by_width(name)
        passes = self._passes(name, trees, [min(max(round(tree.expected), 1), by_width.shape[1]) for tree in trees])
        return np.asarray(by_width @ passes + self._times.hardware.host_times.level_us * 1e-6 * passes.sum(axis=0))

    def _messages(self, name: str, drafters: tuple[str, ...], driver: tuple[int, int]) -> Floats:
        """[requests, trees] of a drafter on a device of its own: for every pass the order to run it, and the logits of its level."""
        model, trees = self._drafting.drafters[name].record.model, self._drafting.trees(drafters)
        assert model is not None
        a, b = driver
        rows = self._requests * np.arange(1, max(self._drafting.workload.max_tree, 1) + 1)
        back = self._collectives.point_to_point(b, a, rows * (model.vocab_size * LOGIT_BYTES))
        return np.asarray((self._collectives.command(a, b) + back) @ self._passes(name, trees, [1] * len(trees)))

    def _passes(self, name: str, trees: Sequence[GrownTree], first: Sequence[int]) -> Floats:
        """[widths, trees] how many passes over 1, 2, … tokens of a request there are, the first over `first`."""
        passes = np.zeros((max(self._drafting.workload.max_tree, 1), len(trees)))
        for place, tree in enumerate(trees):
            for width in (first[place], *tree.levels[name][:-1]):
                passes[width - 1, place] += 1
        return passes

    def _new_by_width(self, name: str) -> Floats:
        """[requests, widths] of a pass over 1, 2, … tokens of each request."""
        workload = self._drafting.workload
        tokens = range(1, max(workload.max_tree, 1) + 1)
        requests = self._requests[:, 0].tolist()
        costs = PassCosts(self._times, self._collectives, requests=requests, tokens=tokens, context=workload.mean_context)
        rows = self._requests * np.array(tokens, dtype=np.intp)
        return self._drafting.drafters[name].seconds(costs, self._times, rows)
