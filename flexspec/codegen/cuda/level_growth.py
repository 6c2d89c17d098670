"""Draft trees grown on a GPU: every level's choice and pass of one proposal in one captured CUDA graph."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.batch import Int32
from flexspec.codegen.cuda.best_nodes import BestNodes
from flexspec.codegen.cuda.captured import Captured
from flexspec.codegen.cuda.kernels.draft_level import MOST_COMPARED, Level, draft_level, draft_level_reference, root_level
from flexspec.codegen.cuda.kernels.draft_top import MOST_CHILDREN, SharedNoise, TopTokens, draft_top, draft_top_reference
from flexspec.codegen.cuda.packed_inputs import PackedInputs
from flexspec.codegen.cuda.packed_levels import PackedLevels, joined
from flexspec.codegen.cuda.pass_shape import PassSizes, power_of_two
from flexspec.codegen.cuda.tiles import block_tokens, query_tiles
from flexspec.codegen.device_trees import BITS
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.level_growth import GrownTrees, GrowthPlan
from flexspec.tree_shape import MAX_TREE_NODES

_WORD_BITS = 32


@dataclass(frozen=True, kw_only=True)
class GrowthModel:
    """What trees are grown with.

    Attributes:
        module: takes its inputs by place; gives logits, and hidden states behind them.
        inputs: names of its inputs, in order.
        sizes: of its passes.
        device: where it runs.
        dtype: of features.
        vocab_size: columns of its logits.
        feature_size: columns of its features; the last `hidden_size` are a node's parent's hidden states, the others zero. 0 for none.
        hidden_size: columns of its hidden states.
        capture: whether a proposal is captured as a CUDA graph.
        pool: of the graphs' memory.
    """

    module: Callable[..., Any]
    inputs: Sequence[str]
    sizes: PassSizes
    device: torch.device
    dtype: torch.dtype
    vocab_size: int
    feature_size: int
    hidden_size: int
    capture: bool
    pool: Any


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """All that a captured graph of a proposal fixes; what stays within it differs in what tensors hold.

    Attributes:
        num_requests: rounded up to a power of two.
        widths: rows of a request on each level below the root that is fed, likewise.
        num_children: as in `GrowthPlan`, like what follows.
        skipped: likewise.
        is_noisy: whether any request draws.
        num_columns: likewise.
        num_candidates: likewise.
        num_nodes: likewise, rounded up to a power of two.
        table_columns: blocks of a request.
        num_splits: parts that attention divides the keys into, for each level.
    """

    num_requests: int
    widths: tuple[int, ...]
    num_children: int
    skipped: int
    is_noisy: bool
    num_columns: int
    num_candidates: int
    num_nodes: int
    table_columns: int
    num_splits: tuple[int, ...]


class GpuLevelGrower:
    """A `LevelGrower`; on a CPU the kernels' references run, and nothing is captured.

    Args:
        model: the draft model.
        states: as `LevelGrower.states`.
    """

    def __init__(self, model: GrowthModel, states: Callable[[Sequence[int]], Tensor]) -> None:
        self.states = states
        self._model = model
        # A captured proposal writes one cache, so each cache has its own, which go with it.
        self._growths: WeakKeyDictionary[KVStorage, dict[Envelope, _Growth]] = WeakKeyDictionary()

    def covers(self, sizes: Sequence[int], num_children: int) -> bool:
        """As `LevelGrower.covers`."""
        widths = [power_of_two(size) for size in sizes]
        is_compared = all(width * num_children <= MOST_COMPARED for width in [1, *widths][: len(widths)])
        fits = sum(widths) <= MAX_TREE_NODES and max(widths, default=0) <= self._model.sizes.tokens[-1]
        return num_children <= MOST_CHILDREN and is_compared and fits

    def grow(self, kv: KVStorage, plan: GrowthPlan, logits: Tensor, states: Tensor | None) -> "GpuGrowth":
        """As `LevelGrower.grow`."""
        widths = tuple(power_of_two(int(size)) for size in plan.limits[:, :, 1].max(axis=0, initial=0))
        assert all(widths), f"a level without nodes: {widths}"
        together = 1 << (self._model.sizes.tokens[-1] // max(widths, default=1)).bit_length() - 1
        shares = [slice(first, first + together) for first in range(0, len(plan.lengths), together)]
        parts: list[_Part] = []
        for share in shares:
            growth = self._growth(kv, self._envelope(plan, share, widths), plan)
            packed, nodes = growth.run(plan, share, logits[share], None if states is None else states[share])
            # Where they lie, a second share may come in the same envelope, and whatever else the model runs may write: graphs share memory.
            parts.append(_Part(growth.layout, len(plan.lengths[share]), packed.clone(), nodes.clone()))
        return GpuGrowth(parts)

    def _envelope(self, plan: GrowthPlan, share: slice, widths: tuple[int, ...]) -> Envelope:
        num_requests = power_of_two(len(plan.lengths[share]))
        sizes, longest = self._model.sizes, int(plan.lengths.max())
        return Envelope(
            num_requests=num_requests,
            widths=widths,
            num_children=plan.num_children,
            skipped=plan.skipped,
            is_noisy=bool(plan.temperatures.any()),
            num_columns=plan.num_columns,
            num_candidates=min(plan.num_candidates, plan.num_columns),
            num_nodes=power_of_two(plan.num_nodes),
            table_columns=plan.block_tables.shape[1],
            num_splits=tuple(sizes.splits(len(_tiles(sizes, num_requests, width)), num_requests * width, longest) for width in widths),
        )

    def _growth(self, kv: KVStorage, envelope: Envelope, plan: GrowthPlan) -> "_Growth":
        growths = self._growths.setdefault(kv, {})
        growth = growths.get(envelope)
        if growth is None:
            token_ids = None
            if plan.token_ids is not None:
                token_ids = torch.from_numpy(plan.token_ids).to(device=self._model.device, dtype=torch.int32)
            growth = growths[envelope] = _Growth(self._model, envelope, kv, token_ids)
        return growth


class _Part(NamedTuple):
    """The trees of a share of the requests."""

    layout: PackedLevels
    num_requests: int
    packed: Tensor
    nodes: Tensor


class GpuGrowth:
    """A `Growth`.

    Args:
        parts: its shares, in order.
    """

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts

    @property
    def packed(self) -> Tensor:
        """As `Growth.packed`."""
        packed = [part.packed for part in self._parts]
        return packed[0] if len(packed) == 1 else torch.cat(packed)

    @property
    def nodes(self) -> Tensor:
        """As `Growth.nodes`."""
        nodes = [part.nodes.view(part.layout.num_requests, -1, part.nodes.shape[1])[: part.num_requests] for part in self._parts]
        return nodes[0] if len(nodes) == 1 else torch.cat(nodes)

    def read(self, packed: Int32) -> GrownTrees:
        """As `Growth.read`."""
        ends = [0, *accumulate(part.layout.size for part in self._parts)]
        return joined([part.layout.read(packed[start:], part.num_requests) for part, start in zip(self._parts, ends, strict=False)])


class _Growth:
    """All of a proposal within one envelope.

    Attributes:
        layout: of what it tells.
    """

    def __init__(self, model: GrowthModel, envelope: Envelope, kv: KVStorage, token_ids: Tensor | None) -> None:
        self._model = model
        self._envelope = envelope
        self._cache = {"keys": kv.keys, "values": kv.values, "block_size": kv.block_size}
        self._token_ids = token_ids
        requests = envelope.num_requests
        self._inputs = PackedInputs(
            {
                "lengths": ((requests,), np.int32),
                "limits": ((requests, len(envelope.widths), 2), np.int32),
                "branches": ((requests, len(envelope.widths) + 1), np.int32),
                "block_tables": ((requests, envelope.table_columns), np.int32),
                "completions": ((requests,), np.int32),
                "seeds": ((requests,), np.int64),
                "temperatures": ((requests,), np.float64),
                "alphas": ((requests,), np.float64),
            },
            device=model.device,
        )
        self._tiles = [torch.from_numpy(_tiles(model.sizes, requests, width)).to(model.device) for width in envelope.widths]
        self._logits = torch.zeros((requests, model.vocab_size), dtype=torch.float32, device=model.device)
        self._states = torch.zeros((requests, model.hidden_size), dtype=model.dtype, device=model.device)
        is_gpu = model.device.type == "cuda"
        self._top = draft_top if is_gpu else draft_top_reference
        self._level = draft_level if is_gpu else draft_level_reference
        widths = (1, *envelope.widths)
        self._best: BestNodes | None = None
        if envelope.num_nodes:
            self._best = BestNodes(
                widths, num_requests=requests, num_children=envelope.num_children, num_nodes=envelope.num_nodes, device=model.device
            )
        self.layout = PackedLevels(
            num_requests=requests,
            widths=widths,
            num_children=envelope.num_children,
            num_candidates=envelope.num_candidates,
            num_nodes=self._best.num_nodes if self._best is not None else 0,
        )
        self._captured: Captured[tuple[Tensor, Tensor]] = Captured(capture=model.capture, pool=model.pool)

    def run(self, plan: GrowthPlan, share: slice, logits: Tensor, states: Tensor | None) -> tuple[Tensor, Tensor]:
        """Grow some requests' trees; what `layout` describes, and the tables of nodes, stay on the device until the next run."""
        names = ["lengths", "limits", "block_tables", "completions", "temperatures", "alphas"]
        if plan.branches is not None:
            assert (plan.branches[:, :-1] >= plan.limits[:, :, 0]).all(), "nodes are fed that may not be chosen"
            names.append("branches")
        self._inputs.fill({"seeds": plan.seeds.view(np.int64)[share], **{name: getattr(plan, name)[share] for name in names}})
        self._logits[: len(logits)].copy_(logits)
        if states is not None:
            self._states[: len(states)].copy_(states)
        return self._captured.run(self._levels)

    def _levels(self) -> tuple[Tensor, Tensor]:
        envelope, given = self._envelope, self._inputs.tensors
        lengths = given["lengths"]
        levels = [root_level(torch.zeros_like(lengths, dtype=torch.int64), lengths, _words(envelope.widths))]
        logits, states = self._logits, self._states
        tops = [self._children(levels[0], logits)]
        told = self._told(levels[0], tops[0], logits)
        for number, width in enumerate(envelope.widths):
            levels.append(self._level(levels[-1], tops[-1], lengths, given["limits"], number, width=width))
            logits, states = self._feed(number, levels[-1], states)
            tops.append(self._children(levels[-1], logits))
            told += self._told(levels[-1], tops[-1], logits)
        nodes = lengths.new_zeros((0, BITS)) if self._best is None else self._best(levels, tops, given["branches"])
        return torch.cat([part.reshape(-1) for part in (*told, nodes[:, :BITS])]), nodes

    def _children(self, level: Level, logits: Tensor) -> TopTokens:
        envelope, given = self._envelope, self._inputs.tensors
        noise = SharedNoise(given["seeds"], given["completions"], given["alphas"])
        top = self._top(
            logits,
            level.slots,
            level.positions + envelope.skipped if envelope.skipped else level.positions,
            level.request_rows,
            given["temperatures"],
            k=envelope.num_children,
            noise=noise if envelope.is_noisy else None,
            token_ids=self._token_ids,
            num_columns=envelope.num_columns,
        )
        # By rounding a share may exceed 1; then a path would be likelier than its beginning.
        return TopTokens(top.ids, top.log_probs.clamp(max=0))

    def _told(self, level: Level, top: TopTokens, logits: Tensor) -> list[Tensor]:
        """What the host is told of a level, as int32: the fields of `GrownLevel` in their order."""
        told = [level.counts, level.token_ids.int(), level.parent_rows, top.ids, top.log_probs.view(torch.int32)]
        if self._envelope.num_candidates:
            likeliest = logits[:, : self._envelope.num_columns].topk(self._envelope.num_candidates, dim=1)
            told += [likeliest.indices.int(), likeliest.values.contiguous().view(torch.int32)]
        return told

    def _feed(self, number: int, level: Level, states: Tensor) -> tuple[Tensor, Tensor]:
        """Run the model on a level: logits, and hidden states, of which `states` has those of the level before."""
        model, inputs = self._model, self._inputs.tensors
        count = len(level.slots)
        given: dict[str, Any] = {
            **self._cache,
            "token_ids": level.token_ids.int(),
            "position_ids": level.positions,
            "request_rows": level.request_rows,
            "slots": level.slots,
            "context_lens": level.context_lens,
            "output_rows": torch.arange(count, dtype=torch.int32, device=model.device),
            "tail_starts": inputs["lengths"],
            "tail_bits": level.tail_bits,
            "block_tables": inputs["block_tables"],
            "tiles": self._tiles[number],
            "block_tokens": _block_tokens(model.sizes, self._envelope.widths[number]),
            "num_splits": self._envelope.num_splits[number],
        }
        if model.feature_size:
            own = states.index_select(0, level.parent_rows)
            given["features"] = torch.nn.functional.pad(own, (model.feature_size - model.hidden_size, 0))
        result = model.module(*[given[name] for name in model.inputs])
        logits, *hidden_states = result if isinstance(result, tuple) else (result,)
        return logits.float().contiguous(), torch.cat(hidden_states, dim=1) if hidden_states else states


def _words(widths: Sequence[int]) -> int:
    return power_of_two(-(-max(sum(widths), 1) // _WORD_BITS))


def _block_tokens(sizes: PassSizes, width: int) -> int:
    return block_tokens(sizes.heads, sizes.kv_heads, width)


def _tiles(sizes: PassSizes, num_requests: int, width: int) -> Int32:
    """Those of a level; a request's padding is worked on with its nodes, and sees nothing."""
    return query_tiles([width] * num_requests, _block_tokens(sizes, width))
