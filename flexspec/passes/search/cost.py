"""What every strategy of a model on given hardware takes in time and memory, part by part."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache

import numpy as np

from flexspec.acceptance import AcceptanceTable
from flexspec.passes.search.case import Case, DraftCosts, StageCosts
from flexspec.passes.search.columns import Columns, side_by_side
from flexspec.passes.search.divisions import EMBEDDING, HEAD, Division, divisions, notes_on
from flexspec.passes.search.draft_costs import Drafting, DraftPasses
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.groups import Groups, Links
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.memory import OtherMemory, kv_bytes, kv_slots, other_memory, room
from flexspec.passes.search.pass_costs import OnePass, PassCosts
from flexspec.passes.search.records import ModelRecord
from flexspec.passes.search.space import AUTO, DraftOption, Shape, Workload, degrees, draft_options, shapes
from flexspec.passes.search.stages import Floats, Ints
from flexspec.passes.search.times import OperatorTimes

_STREAM_BYTES = 4
"""Of an element of the residual stream between stages, which travels in float32."""
_DIVIDED_AT = (1, 4, 16, 64)
"""Tokens a request of the passes that divisions are looked for at; each is then costed at every size."""


class CostModel:
    """Costs of the strategies for a workload.

    Args:
        model: what the model does.
        drafters: those that may be used.
        hardware: what it runs on.
        workload: what it is for.
        acceptance: of the drafters.
    """

    def __init__(
        self,
        model: ModelRecord,
        drafters: Sequence[DrafterRecord],
        hardware: Hardware,
        workload: Workload,
        acceptance: AcceptanceTable,
    ) -> None:
        self.model, self.hardware, self.workload = model, hardware, workload
        self.drafting = Drafting(drafters, workload, acceptance)
        self.groups = Groups(hardware)
        times = OperatorTimes(hardware, workload.dtype, kv_cache_dtype=workload.kv_cache_dtype)
        self.element_bytes, self.cache_bytes = times.element_bytes, times.cache_bytes
        self._acceptance = acceptance
        self._tokens = range(1, workload.max_tree + 2) if drafters else range(1, 2)
        self.kinds = list(model.blocks)
        self.layers = np.array([self.kinds.index(kind) for kind in model.layers], dtype=np.intp)
        self._degrees = degrees(hardware.num_devices, int(max(np.bincount([device.host for device in hardware.devices]))))
        self._tells_busy = any(table.busy for table in hardware.operators)
        self._options = self._options_with_trees()
        self._shapes = self._all_shapes()
        self.requests = sorted({shape.requests for shapes in self._shapes.values() for shape in shapes})
        # Each of these depends on its arguments alone, and is asked for over and over.
        kv_cache_dtype = workload.kv_cache_dtype
        self._times = cache(lambda busy: OperatorTimes(hardware, workload.dtype, busy=busy, kv_cache_dtype=kv_cache_dtype))
        self.passes = cache(self._new_passes)
        self._draft_passes = cache(lambda busy: DraftPasses(self.drafting, self._times(busy), self.groups.collectives, self.requests))
        self._seconds = cache(self._new_seconds)
        self._message = cache(self._new_message)
        self.ends = cache(self._new_ends)
        self.kv_bytes = cache(self._new_kv_bytes)
        self.links = cache(lambda dp, pp, tp, own: Links.of(self.groups, dp=dp, pp=pp, tp=tp, own=own))

    @property
    def skipped(self) -> list[str]:
        """What the space leaves out, or keeps whole, and why."""
        return notes_on(self.model, self._degrees)

    def notes(self) -> list[str]:
        """What the predictions rest on."""
        notes = []
        if not self.hardware.is_measured:
            notes.append(f"speed of operators on {self.hardware.name}: {self.hardware.efficiency}")
        if self.workload.kv_cache_dtype != AUTO:
            given = self.workload.kv_cache_dtype
            notes.append(f"KV cache in {given}, as it was asked for: the model computes other numbers then; run it with the same option")
        if self.hardware.num_devices > 1 and not self.groups.collectives.is_measured("command", 2):
            notes.append(f"messages between ranks on {self.hardware.name}: {self.hardware.messages.source}")
        for name in self.drafting.names:
            if not any(True for _ in self._acceptance.of(name).rows()):
                notes.append(f"acceptance of {name}: assumed, as of a drafter nobody has seen; --acceptance FILE gives what was seen")
        if len(self.drafting.names) > 1:
            notes.append("several drafters: taken to be right independently of each other")
        return notes

    def _options_with_trees(self) -> list[DraftOption]:
        """Sets of drafters with their places; none first."""
        if self.workload.max_tree == 0:
            return [DraftOption()]
        options = draft_options(self.drafting.names, self.drafting.movable, self.hardware.num_devices)
        return [option for option in options if not option.drafters or self.drafting.trees(option.drafters)]

    def _all_shapes(self) -> dict[tuple[int, int, int], list[Shape]]:
        """By tensor degree, stages, and drafters with devices of their own."""
        devices = self.hardware.num_devices
        return {
            (tp, pp, own): list(shapes(self.workload, devices, tp=tp, pp=pp, own_devices=own))
            for tp in self._degrees
            for own in sorted({len(option.own_devices) for option in self._options})
            for pp in range(1, min((devices - own) // tp, len(self.layers)) + 1)
        }

    def cases(self) -> Iterator[Case]:
        """All combinations of the choices that are not about tree and cut."""
        for columns in self.columns():
            yield from map(columns.case, range(len(columns.shapes)))

    def columns(self) -> Iterator[Columns]:
        """The same, those side by side that share most."""
        ways = {tp: tuple(divisions(self.model, tp, self._prices(tp))) for tp in self._degrees}
        for (tp, pp, own), found in self._shapes.items():
            alike: dict[tuple[Links, int, int], list[Shape]] = {}
            for shape in found if ways[tp] else []:
                key = (self.links(shape.dp, pp, tp, own), self.busy(shape), self._known_busy(shape.dp))
                alike.setdefault(key, []).append(shape)
            for some in alike.values():
                yield from self._side_by_side(ways[tp], some, own)

    def _side_by_side(self, ways: tuple[Division, ...], alike: Sequence[Shape], own: int) -> Iterator[Columns]:
        """Shapes whose groups have the same links, with every set of drafters of which so many have devices of their own."""
        pairs = sorted({(shape.requests, shape.micro_batches) for shape in alike})
        index = {pair: place for place, pair in enumerate(pairs)}
        places = np.array([index[shape.requests, shape.micro_batches] for shape in alike], dtype=np.intp)
        stages = self._stage_costs(ways, alike[0], own, pairs)
        for option in self._options:
            if len(option.own_devices) == own:
                yield side_by_side(
                    alike,
                    option,
                    stages,
                    self._draft_costs(option, alike[0], pairs),
                    pairs=np.array([micro_batches for _, micro_batches in pairs], dtype=np.intp),
                    places=places,
                    members=len(ways),
                    case=lambda place, option=option: self._case(ways, alike[place], option),  # type: ignore[misc]
                )

    def _case(self, ways: tuple[Division, ...], shape: Shape, option: DraftOption) -> Case:
        """A case, or all that differ in the division alone."""
        own, pairs = len(option.own_devices), [(shape.requests, shape.micro_batches)]
        drafting = self._draft_costs(option, shape, pairs).at(0)

        def case(some: tuple[Division, ...]) -> Case:
            stages = self._stage_costs(some, shape, own, pairs).at(0)
            return Case(shape=shape, option=option, division=some[0], stages=stages, drafting=drafting)

        whole = case(ways)
        return whole if len(ways) == 1 else replace(whole, members=(len(ways), lambda: [case((way,)) for way in ways]))

    def least_memory(self) -> str:
        """What a strategy needs at least, in words."""
        elements = self.model.parameters * self.element_bytes / 1e9
        slots = kv_slots(self.workload, 0)
        one = kv_bytes(kv_heads=self.model.kv_heads, head_dim=self.model.head_dim, slots=slots, requests=1, element_bytes=self.cache_bytes)
        kv = float(one) * len(self.layers) / 1e9
        have, devices = room(self.hardware) / 1e9, self.hardware.num_devices
        owners = "1 device has" if devices == 1 else f"each of {devices} devices has"
        return f"its weights take {elements:.3g} GB and the KV cache of one request {kv:.3g} GB, and {owners} {have:.3g} GB to plan for"

    def _prices(self, tp: int) -> list[OnePass]:
        """Of the passes that divisions are looked for at."""
        group = self.links(1, 1, tp, 0).groups[0]
        requests = sorted({1, self.workload.batch})
        tokens = sorted({min(tokens, self._tokens[-1]) for tokens in _DIVIDED_AT})
        costs = self._passes_of(self._known_busy(tp), tuple(requests), tuple(tokens))
        return [costs.of_one(row, column, group) for row in range(len(requests)) for column in range(len(tokens))]

    def busy(self, shape: Shape) -> int:
        """Devices that work at the same time."""
        return self._known_busy(shape.dp * shape.tp * min(shape.pp, shape.micro_batches))

    def _known_busy(self, busy: int) -> int:
        return min(busy, self.hardware.num_devices) if self._tells_busy else self.hardware.num_devices

    def _new_passes(self, busy: int) -> PassCosts:
        return self._passes_of(busy, self.requests, self._tokens)

    def _passes_of(self, busy: int, requests: Sequence[int], tokens: Sequence[int]) -> PassCosts:
        context = self.workload.mean_context
        return PassCosts(self._times(busy), self.groups.collectives, requests=requests, tokens=tokens, context=context)

    def _new_seconds(self, ways: tuple[Division, ...], place: str, busy: int, group: tuple[int, ...]) -> Floats:
        """[requests, sizes] of a place, divided in the fastest of some ways."""
        passes = self.passes(busy)
        found = [passes.assignment(way, group) for way in dict.fromkeys(way.places[place] for way in ways)]
        return np.asarray(np.minimum.reduce(found))

    def _stage_costs(self, ways: tuple[Division, ...], shape: Shape, own: int, pairs: Sequence[tuple[int, int]]) -> StageCosts:
        """Of a way, or of the best of several in everything by itself, for several micro-batches.

        Args:
            ways: divisions.
            shape: one of those with the same links.
            own: drafters with devices of their own.
            pairs: requests of a micro-batch, and micro-batches under way.
        """
        busy, links, pp = self.busy(shape), self.links(shape.dp, shape.pp, shape.tp, own), min(shape.pp, 2)
        rows, in_flight = self._rows(pairs)
        groups = links.groups[:1] if len(set(links.groups)) == 1 else links.groups
        by_group = {
            group: np.stack([self._seconds(ways, kind, busy, group)[rows] for kind in self.kinds], axis=-1) for group in set(groups)
        }  # [micro-batches, sizes, kinds] each
        ends = self.ends(ways, pp)
        kv = self.kv_bytes(min(way.kv_heads for way in ways)) * in_flight[:, None]
        return StageCosts(
            stages=shape.pp,
            kinds=self.layers,
            kind_seconds=np.stack([by_group[group] for group in groups]),
            first=self._seconds(ways, EMBEDDING, busy, links.groups[0])[rows],
            last=self._seconds(ways, HEAD, busy, links.groups[-1])[rows],
            between=self._messages(links, shape.pp * shape.tp - 1)[rows],
            kind_bytes=self.layer_weights(ways) + kv[:, :, None],
            first_bytes=ends.embedding[rows],
            last_bytes=(ends.head + ends.logits)[rows],
            room=(room(self.hardware) - ends.activations - ends.buffers)[rows],
        )

    def _rows(self, pairs: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
        """Places among all numbers of requests, and requests of all micro-batches under way."""
        requests, micro_batches = np.array(pairs, dtype=np.intp).T
        return np.searchsorted(self.requests, requests), requests * micro_batches

    def layer_weights(self, ways: tuple[Division, ...]) -> Floats:
        """[kinds] bytes of a layer."""
        return np.array([min(way.blocks[kind].weights for way in ways) * self.element_bytes for kind in self.kinds], dtype=float)

    def _messages(self, links: Links, workers: int) -> Floats:
        """[requests, sizes] between the stages, the order to begin included, which so many workers get."""
        total = np.zeros((len(self.requests), len(self._tokens)))
        if links.worker is not None:
            total += self.groups.collectives.command(*links.worker, workers)
        for pair, number in links.boundaries:
            total += number * self._message(pair)
        return total

    def _new_message(self, pair: tuple[int, int]) -> Floats:
        """[requests, sizes] of the residual stream from one device to another."""
        rows = np.array(self.requests)[:, None] * np.array(self._tokens)
        return np.asarray(self.groups.collectives.point_to_point(*pair, rows * (self.model.hidden * _STREAM_BYTES)))

    def _draft_costs(self, option: DraftOption, shape: Shape, pairs: Sequence[tuple[int, int]]) -> DraftCosts:
        """Of an option, for several micro-batches; `shape` is one of those with the same links."""
        rows, in_flight = self._rows(pairs)
        return self.drafting.costs(
            option,
            self._draft_passes(self._known_busy(shape.dp)),
            rows=rows,
            in_flight=in_flight,
            element_bytes=self.element_bytes,
            cache_bytes=self.cache_bytes,
            driver=self.links(shape.dp, shape.pp, shape.tp, len(option.own_devices)).drafter,
        )

    def _new_kv_bytes(self, kv_heads: int) -> Floats:
        """[sizes] of one layer, for one request."""
        slots = np.array([kv_slots(self.workload, tokens - 1) for tokens in self._tokens])
        return np.asarray(
            kv_bytes(kv_heads=kv_heads, head_dim=self.model.head_dim, slots=slots, requests=1, element_bytes=self.cache_bytes)
        )

    def _new_ends(self, ways: tuple[Division, ...], pp: int) -> OtherMemory:
        """What there is besides layers, of the way that needs least of each; `pp` is 2 for any number of several stages."""
        found = [self._other_memory(way, pp) for way in ways]
        return OtherMemory(
            **{name: np.minimum.reduce([getattr(one, name) for one in found]) for name in (part.name for part in fields(OtherMemory))}
        )

    def _other_memory(self, way: Division, pp: int) -> OtherMemory:
        return other_memory(
            self.model,
            way,
            tokens=np.array(self.requests)[:, None] * np.array(self._tokens),
            pp=pp,
            element_bytes=self.element_bytes,
            activation_bytes=self._times(self._known_busy(1)).activation_bytes,
            context=self.workload.context,
        )
