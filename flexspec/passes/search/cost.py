"""What every strategy of a model on given hardware takes in time and memory, part by part."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import cache

import numpy as np

from flexspec.acceptance import AcceptanceTable
from flexspec.passes.search.case import Case, DraftCosts, StageCosts
from flexspec.passes.search.divisions import EMBEDDING, HEAD, Division, divisions, notes_on
from flexspec.passes.search.draft_costs import Drafting, DraftPasses
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.groups import Groups
from flexspec.passes.search.hardware import Hardware
from flexspec.passes.search.memory import OtherMemory, kv_bytes, kv_slots, other_memory, room
from flexspec.passes.search.pass_costs import PassCosts
from flexspec.passes.search.price import PassPrice
from flexspec.passes.search.records import ModelRecord
from flexspec.passes.search.space import DraftOption, Shape, Workload, degrees, draft_options, shapes
from flexspec.passes.search.stages import Floats
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
        self.element_bytes = OperatorTimes(hardware, workload.dtype).element_bytes
        self._acceptance = acceptance
        self._tokens = range(1, workload.max_tree + 2) if drafters else range(1, 2)
        self.kinds = list(model.blocks)
        self.layers = np.array([self.kinds.index(kind) for kind in model.layers], dtype=np.intp)
        self._degrees = degrees(hardware.num_devices, int(max(np.bincount([device.host for device in hardware.devices]))))
        self._tells_busy = any(table.busy for table in hardware.operators)
        # Each of these depends on its arguments alone, and is asked for over and over.
        self._times = cache(lambda busy: OperatorTimes(hardware, workload.dtype, busy=busy))
        self.passes = cache(self._new_passes)
        self._draft_passes = cache(lambda requests, busy: DraftPasses(self.drafting, self._times(busy), self.groups.collectives, requests))
        self._seconds = cache(self._new_seconds)
        self.groups_of = cache(lambda dp, pp, tp, own: self.groups.stages(dp=dp, pp=pp, tp=tp, own=own))
        self._boundaries = cache(lambda dp, pp, tp, own: self.groups.boundaries(dp=dp, pp=pp, tp=tp, own=own))
        self._from_driver = cache(lambda dp, size, start, end: self.groups.from_driver(dp=dp, size=size, to=range(start, end)))
        self._message = cache(self._new_message)
        self.ends = cache(self._new_ends)
        self.kv_bytes = cache(self._new_kv_bytes)
        self._stages = cache(self._stage_costs)
        self._drafts = cache(self._draft_costs)

    @property
    def skipped(self) -> list[str]:
        """What the space leaves out, or keeps whole, and why."""
        return notes_on(self.model, self._degrees)

    def notes(self) -> list[str]:
        """What the predictions rest on."""
        notes = []
        if not self.hardware.is_measured:
            notes.append(f"speed of operators on {self.hardware.name}: {self.hardware.efficiency}")
        for name in self.drafting.names:
            if not any(True for _ in self._acceptance.of(name).rows()):
                notes.append(f"acceptance of {name}: assumed, as of a drafter nobody has seen; --acceptance FILE gives what was seen")
        if len(self.drafting.names) > 1:
            notes.append("several drafters: taken to be right independently of each other")
        return notes

    def cases(self) -> Iterator[Case]:
        """All combinations of the choices that are not about tree and cut."""
        devices = self.hardware.num_devices
        options = [
            option
            for option in draft_options(self.drafting.names, self.drafting.movable, devices)
            if not option.drafters or self.drafting.trees(option.drafters)
        ]
        if self.workload.max_tree == 0:
            options = options[:1]
        for tp in self._degrees:
            ways = tuple(divisions(self.model, tp, self._prices(tp)))
            for option in options if ways else []:
                own = len(option.own_devices)
                for pp in range(1, min((devices - own) // tp, len(self.layers)) + 1):
                    for shape in shapes(self.workload, devices, tp=tp, pp=pp, own_devices=own):
                        yield self._family(ways, shape, option)

    def _family(self, ways: tuple[Division, ...], shape: Shape, option: DraftOption) -> Case:
        """A case, or all that differ in the division alone."""
        own, drafting = len(option.own_devices), self._drafting(option, shape)

        def case(some: tuple[Division, ...]) -> Case:
            return Case(shape=shape, option=option, division=some[0], stages=self._stages(some, shape, own), drafting=drafting)

        whole = case(ways)
        return whole if len(ways) == 1 else replace(whole, members=(len(ways), lambda: [case((way,)) for way in ways]))

    def least_memory(self) -> str:
        """What a strategy needs at least, in words."""
        elements = self.model.parameters * self.element_bytes / 1e9
        slots = kv_slots(self.workload, 0)
        one = kv_bytes(
            kv_heads=self.model.kv_heads, head_dim=self.model.head_dim, slots=slots, requests=1, element_bytes=self.element_bytes
        )
        kv = float(one) * len(self.layers) / 1e9
        have = room(self.hardware) / 1e9
        return (
            f"its weights take {elements:.3g} GB and the KV cache of one request {kv:.3g} GB, and {self.hardware.num_devices} "
            f"device{'s' if self.hardware.num_devices > 1 else ''} have {have:.3g} GB each to plan for"
        )

    def _prices(self, tp: int) -> list[PassPrice]:
        """Of the passes that divisions are looked for at."""
        times, group = self._times(self._known_busy(tp)), self.groups.stages(dp=1, pp=1, tp=tp, own=0)[0]
        most = max(self.workload.batch, 1)
        wanted = sorted({min(tokens, self._tokens[-1]) for tokens in _DIVIDED_AT})
        return [
            PassPrice(
                times=times,
                collectives=self.groups.collectives,
                group=group,
                requests=requests,
                tokens=tokens,
                context=self.workload.mean_context,
            )
            for requests in sorted({1, most})
            for tokens in wanted
        ]

    def busy(self, shape: Shape) -> int:
        """Devices that work at the same time."""
        return self._known_busy(shape.dp * shape.tp * min(shape.pp, shape.micro_batches))

    def _known_busy(self, busy: int) -> int:
        return min(busy, self.hardware.num_devices) if self._tells_busy else self.hardware.num_devices

    def _new_passes(self, requests: int, busy: int) -> PassCosts:
        return PassCosts(
            self._times(busy), self.groups.collectives, tokens=self._tokens, requests=requests, context=self.workload.mean_context
        )

    def _new_seconds(self, ways: tuple[Division, ...], place: str, requests: int, busy: int, group: tuple[int, ...]) -> Floats:
        """[sizes] of a place, divided in the fastest of some ways."""
        passes = self.passes(requests, busy)
        found = [passes.assignment(way, group) for way in dict.fromkeys(way.places[place] for way in ways)]
        return np.asarray(np.minimum.reduce(found))

    def _stage_costs(self, ways: tuple[Division, ...], shape: Shape, own: int) -> StageCosts:
        """Of a way, or of the best of several in everything by itself."""
        requests, busy, groups = shape.requests, self.busy(shape), self.groups_of(shape.dp, shape.pp, shape.tp, own)
        rows = groups[:1] if len(set(groups)) == 1 else groups
        seconds = [
            np.stack([self._seconds(ways, kind, requests, busy, group) for kind in self.kinds], axis=1) for group in rows
        ]  # [sizes, kinds] each
        pp = min(shape.pp, 2)
        ends = self.ends(ways, requests, pp)
        weights, kv = self.layer_weights(ways), self.kv_bytes(min(way.kv_heads for way in ways), requests * shape.micro_batches)
        return StageCosts(
            stages=shape.pp,
            kinds=self.layers,
            kind_seconds=np.stack(seconds),
            first=self._seconds(ways, EMBEDDING, requests, busy, groups[0]),
            last=self._seconds(ways, HEAD, requests, busy, groups[-1]),
            between=self._messages(shape, own),
            kind_bytes=weights[None, :] + kv[:, None],
            first_bytes=ends.embedding,
            last_bytes=ends.head + ends.logits,
            room=room(self.hardware) - ends.activations - ends.buffers,
        )

    def layer_weights(self, ways: tuple[Division, ...]) -> Floats:
        """[kinds] bytes of a layer."""
        return np.array([min(way.blocks[kind].weights for way in ways) * self.element_bytes for kind in self.kinds], dtype=float)

    def _messages(self, shape: Shape, own: int) -> Floats:
        """[sizes] between the stages, the order to begin included."""
        size = shape.pp * shape.tp + own
        total = np.zeros(len(self._tokens))
        if shape.pp * shape.tp > 1:
            total += self.groups.collectives.command(*self._from_driver(shape.dp, size, 1, shape.pp * shape.tp))
        for pair, number in self._boundaries(shape.dp, shape.pp, shape.tp, own).items():
            total += number * self._message(pair, shape.requests)
        return total

    def _new_message(self, pair: tuple[int, int], requests: int) -> Floats:
        """[sizes] of the residual stream from one device to another."""
        sizes = (requests * tokens * self.model.hidden * _STREAM_BYTES for tokens in self._tokens)
        return np.array([self.groups.collectives.point_to_point(*pair, one) for one in sizes])

    def _drafting(self, option: DraftOption, shape: Shape) -> DraftCosts:
        own, size = len(option.own_devices), shape.pp * shape.tp + len(option.own_devices)
        message = 0.0
        if own:
            a, b = self._from_driver(shape.dp, size, size - own, size)
            rows = shape.requests * (self.workload.max_tree + 1)
            message = self.groups.collectives.command(a, b) + self.groups.collectives.point_to_point(b, a, rows * _STREAM_BYTES)
        return self._drafts(option, shape.requests, shape.requests * shape.micro_batches, self._known_busy(shape.dp), message)

    def _draft_costs(self, option: DraftOption, requests: int, in_flight: int, busy: int, message: float) -> DraftCosts:
        return self.drafting.costs(
            option,
            self._draft_passes(requests, busy),
            in_flight=in_flight,
            element_bytes=self.element_bytes,
            message_seconds=message,
        )

    def _new_kv_bytes(self, kv_heads: int, requests: int) -> Floats:
        """[sizes] of one layer."""
        slots = np.array([kv_slots(self.workload, tokens - 1) for tokens in self._tokens])
        return np.asarray(
            kv_bytes(kv_heads=kv_heads, head_dim=self.model.head_dim, slots=slots, requests=requests, element_bytes=self.element_bytes)
        )

    def _new_ends(self, ways: tuple[Division, ...], requests: int, pp: int) -> OtherMemory:
        """What there is besides layers, of the way that needs least of each; `pp` is 2 for any number of several stages."""
        found = [self._other_memory(way, requests, pp) for way in ways]
        return OtherMemory(
            **{name: np.minimum.reduce([getattr(one, name) for one in found]) for name in (part.name for part in fields(OtherMemory))}
        )

    def _other_memory(self, way: Division, requests: int, pp: int) -> OtherMemory:
        tokens = requests * np.array(self._tokens)
        return other_memory(
            self.model,
            way,
            tokens=tokens,
            pp=pp,
            element_bytes=self.element_bytes,
            activation_bytes=self._times(self._known_busy(1)).activation_bytes,
            context=self.workload.context,
        )
