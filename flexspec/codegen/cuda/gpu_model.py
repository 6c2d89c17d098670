"""The GPU targets: the graph's blocks compiled once, attention in our kernels, and passes replayed from captured CUDA graphs."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from flexspec.codegen.batch import Batch
from flexspec.codegen.cuda.captured import Captured
from flexspec.codegen.cuda.fusion import compile_between_kernels, is_kernel
from flexspec.codegen.cuda.graph import make_transparent, move_weights, runs_reference, split_attention
from flexspec.codegen.cuda.level_growth import GpuLevelGrower, GrowthModel
from flexspec.codegen.cuda.pass_buffers import PassBuffers
from flexspec.codegen.cuda.pass_shape import PassShape, PassSizes
from flexspec.codegen.cuda.walker import KernelWalker
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.codegen.level_growth import LevelGrower
from flexspec.codegen.lowering import LoweringReport
from flexspec.codegen.tree_walk import TreeWalker
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import TREE_ATTENTION


class GpuModel:
    """A compiled model on a GPU; see `CompiledModel`. On a CPU, where it is tested, kernels are replaced by their references.

    Args:
        model: the graph; it is used up.
        device: where it runs.
        dtype: of weights and activations.
        kv_shape: what one slot of its cache holds.
        max_positions: as in `CompiledModel`.
        buckets: sizes of a pass, ascending; the last is the largest there will be.
        store: where weights are shared with other models.
        compile_blocks: whether Inductor fuses what lies between the kernels.
        capture: whether passes are captured as CUDA graphs, one a shape, when the shape first comes up.
        by_reference: whether the references of attention and what surrounds it run in the kernels' place; they can't be captured.
    """

    def __init__(
        self,
        model: ModelGraph,
        *,
        device: torch.device,
        dtype: torch.dtype,
        kv_shape: KVShape,
        max_positions: int | None,
        buckets: Sequence[int],
        store: WeightStore,
        compile_blocks: bool,
        capture: bool,
        by_reference: bool = False,
    ) -> None:
        assert not (capture and by_reference), "references come back to the host"
        self.vocab_size = model.facts.vocab_size
        self.kv_shape = kv_shape
        self.max_positions = max_positions
        self.max_pass_tokens = buckets[-1]
        self.feature_size = model.feature_size
        self.hidden_size = sum(int(fake(node).shape[-1]) for node in model.hidden_states)
        self.tree_walker: TreeWalker | None = KernelWalker()
        self.completes_batches = True
        self._device = device
        self._dtype = dtype
        self._sizes = PassSizes(
            tokens=tuple(buckets),
            heads=_num_heads(model),
            kv_heads=kv_shape.num_kv_heads,
            multiprocessors=torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0,
        )
        split_attention(model, has_scales=kv_shape.dtype != dtype, by_reference=by_reference)
        make_transparent(model)
        weight_bytes = move_weights(model, store, dtype=dtype, device=device)
        if compile_blocks:
            compile_between_kernels(model.module)
        self._module = model.module
        self._inputs = [str(node.target) for node in model.graph.find_nodes(op="placeholder")]
        self._gathers = "output_rows" in self._inputs
        # A captured pass reads one cache, so each cache has its own passes, which go with it.
        self._passes: WeakKeyDictionary[KVStorage, dict[PassShape, _Pass]] = WeakKeyDictionary()
        self._capture = capture
        self._pool: Any = torch.cuda.graph_pool_handle() if capture else None
        self._states = _States(device)
        grown_with = GrowthModel(
            module=self._module,
            inputs=self._inputs,
            sizes=self._sizes,
            device=device,
            dtype=dtype,
            vocab_size=self.vocab_size,
            feature_size=self.feature_size,
            hidden_size=self.hidden_size,
            capture=capture,
            pool=self._pool,
        )
        self.level_grower: LevelGrower | None = GpuLevelGrower(grown_with, self._states.at)
        self.lowering = LoweringReport(target=device.type, implementations=_implementations(model), weight_bytes=weight_bytes)

    def forward(self, batch: Batch, kv: KVStorage, features: Tensor | None = None) -> Tensor:
        """Run one pass; see `CompiledModel.forward`. The logits stay on the device, and the host does not wait for them."""
        assert (features is None) == (self.feature_size == 0), f"a model with {self.feature_size} features"
        shape = self._sizes.shape(batch)
        passes = self._passes.setdefault(kv, {})
        one = passes.get(shape)
        if one is None:
            one = passes[shape] = self._new_pass(shape, kv)
        one.buffers.fill(batch, features)
        logits, *self._states.last = one.run()
        return logits[: len(batch.output_rows) if self._gathers else batch.num_tokens]

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> Tensor:
        """See `CompiledModel.hidden_states`; the result is on the host."""
        return self._states.at(rows).float().cpu()

    def _new_pass(self, shape: PassShape, kv: KVStorage) -> "_Pass":
        buffers = PassBuffers(shape, device=self._device, feature_size=self.feature_size, dtype=self._dtype)
        given: dict[str, Any] = {
            **buffers.inputs,
            "keys": kv.keys,
            "values": kv.values,
            "block_size": kv.block_size,
            "block_tokens": shape.block_tokens,
            "num_splits": shape.num_splits,
        }
        return _Pass(self._module, [given[name] for name in self._inputs], buffers, capture=self._capture, pool=self._pool)


class _States:
    """The hidden states of a model's last pass."""

    def __init__(self, device: torch.device) -> None:
        self.last: Sequence[Tensor] = ()
        self._device = device

    def at(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> Tensor:
        """As `LevelGrower.states`."""
        assert self.last, "no hidden states were asked for, or no pass was run"
        index = torch.from_numpy(np.array(rows, dtype=np.int64)).to(self._device)
        return torch.cat([state.index_select(0, index) for state in self.last], dim=1)


class _Pass:
    """A pass of one shape: its inputs, and its results in the same memory every time."""

    def __init__(self, module: fx.GraphModule, inputs: Sequence[Any], buffers: PassBuffers, *, capture: bool, pool: Any) -> None:
        self.buffers = buffers
        self._module = module
        self._inputs = inputs
        self._captured: Captured[Sequence[Tensor]] = Captured(capture=capture, pool=pool)

    def run(self) -> Sequence[Tensor]:
        """Logits, and hidden states behind them."""
        return self._captured.run(self._results)

    def _results(self) -> Sequence[Tensor]:
        result = self._module(*self._inputs)
        logits, *hidden_states = result if isinstance(result, tuple) else (result,)
        return logits.float().contiguous(), *hidden_states


def _num_heads(model: ModelGraph) -> int:
    for module in [module for module in model.module.modules() if isinstance(module, fx.GraphModule)]:
        for node in module.graph.find_nodes(op="call_function", target=TREE_ATTENTION):
            return int(fake(node.args[0]).shape[-2])
    raise AssertionError("a model without attention")


def _implementations(model: ModelGraph) -> dict[str, str]:
    found: dict[str, str] = {}
    for module in model.module.modules():
        inner = getattr(module, "_orig_mod", None)
        if isinstance(inner, fx.GraphModule):
            found |= {str(node.target): "Inductor" for node in inner.graph.nodes if node.op == "call_function"}
    for module in model.module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "call_function":
                    found.setdefault(str(node.target), _kernel(node) if is_kernel(node) else str(node.target))
    return found


def _kernel(node: fx.Node) -> str:
    return "reference" if runs_reference(node) else "Triton kernel"
