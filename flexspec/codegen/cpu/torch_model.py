"""The `cpu-torch` target: the graph itself, run by PyTorch operators; for machines without a C++ compiler."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, fx

from flexspec.codegen.batch import Batch
from flexspec.codegen.cpu.rounding import round_to
from flexspec.codegen.cpu.torch_attention import tree_attention
from flexspec.codegen.cpu.torch_collectives import collective_functions
from flexspec.codegen.cpu.torch_linear import packed_linear, reorder
from flexspec.codegen.kv_storage import KVShape, KVStorage
from flexspec.codegen.level_growth import LevelGrower
from flexspec.codegen.lowering import LoweringReport
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.codegen.tree_walk import TreeWalker
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import PACKED_LINEAR, TREE_ATTENTION
from flexspec.ir.positions import position_values
from flexspec.ir.slopes import slopes_of

_ONEDNN = "oneDNN, reordered weight"
_LIBRARY_LINEAR = "aten.linear"


class TorchModel:
    """A compiled model that runs its graph with PyTorch operators; see `CompiledModel`."""

    tree_walker: TreeWalker | None = None
    level_grower: LevelGrower | None = None
    completes_batches = False

    def __init__(
        self,
        model: ModelGraph,
        *,
        kv_shape: KVShape,
        max_positions: int | None,
        max_pass_tokens: int,
        store: WeightStore,
        reason: str,
        compile_failed: bool = False,
        group: ParallelGroup | None = None,
    ) -> None:
        self.vocab_size = model.facts.vocab_size
        self.kv_shape = kv_shape
        self.max_positions = max_positions
        self.max_pass_tokens = max_pass_tokens
        self._dtype = kv_shape.dtype
        has_onednn: Callable[[], bool] = torch.backends.mkldnn.is_available  # untyped in PyTorch
        self._onednn = has_onednn()
        self._implementations: dict[str, str] = {}
        self._collectives = {} if group is None else collective_functions(group)
        self._inputs = [str(node.target) for node in model.graph.find_nodes(op="placeholder")]
        weight_bytes = self._convert_weights(model, store)
        round_to(model, self._dtype)
        for graph_module in [module for module in model.module.modules() if isinstance(module, fx.GraphModule)]:
            self._select(graph_module)
        self._module = model.module
        self._hidden_states: Sequence[Tensor] = ()
        self.feature_size = model.feature_size
        self.hidden_size = sum(int(fake(node).shape[-1]) for node in model.hidden_states)
        self.lowering = LoweringReport(
            target="cpu-torch",
            reason=reason,
            compile_failed=compile_failed,
            implementations=self._implementations,
            weight_bytes=weight_bytes,
        )

    def forward(self, batch: Batch, kv: KVStorage, features: Tensor | None = None) -> Tensor:
        """Run one pass; see `CompiledModel.forward`."""
        assert (features is None) == (self.feature_size == 0), f"a model with {self.feature_size} features"
        if features is not None:
            assert features.dtype == torch.float32 and features.shape == (batch.num_tokens, self.feature_size)
            features = features.to(self._dtype)
        given: dict[str, Any] = {
            "token_ids": torch.from_numpy(batch.token_ids),
            "position_ids": torch.from_numpy(batch.positions),
            "keys": kv.keys,
            "values": kv.values,
            "request_rows": torch.from_numpy(batch.request_rows),
            "slots": torch.from_numpy(batch.slots),
            "context_lens": torch.from_numpy(batch.context_lens),
            "tail_starts": torch.from_numpy(batch.tail_starts),
            "tail_bits": torch.from_numpy(batch.tail_bits),
            "block_tables": torch.from_numpy(batch.block_tables),
            "block_size": kv.block_size,
            "output_rows": torch.from_numpy(batch.output_rows),
            "features": features,
        }
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            result = self._module(*(given[name] for name in self._inputs))
            logits: Tensor
            logits, *self._hidden_states = result if isinstance(result, tuple) else (result,)
            return logits.float().contiguous()

    def hidden_states(self, rows: npt.NDArray[np.int32] | Sequence[int]) -> Tensor:
        """See `CompiledModel.hidden_states`."""
        assert self._hidden_states, "no hidden states were asked for, or no pass was run"
        index = torch.from_numpy(np.array(rows, dtype=np.int64))
        return torch.cat([state.index_select(0, index) for state in self._hidden_states], dim=1).float()

    def _convert_weights(self, model: ModelGraph, store: WeightStore) -> int:
        """Bring every parameter into the model's dtype, those of linears into oneDNN's layout; constants stay as they are."""
        if self._onednn:
            _split_tied_weights(model)
        linear_weights = _linear_weights(model)
        constants = {
            arg for node in position_values(model)[0] for arg in node.all_input_nodes if node.target != torch.ops.aten.embedding.default
        }
        constants |= slopes_of(model)
        total = 0
        for node in model.graph.find_nodes(op="get_attr"):
            value = model.parameter(node)
            if node in constants or not value.is_floating_point():
                _replace(model, node, value.detach().clone())
                continue
            packed = node in linear_weights and self._onednn
            key = ("torch", packed, self._dtype, model.origin(node))
            converted = store.get(key)
            if converted is None:
                converted = reorder(value.to(self._dtype)) if packed else value.detach().to(self._dtype, copy=True)
                store.put(key, converted)
                total += value.numel() * self._dtype.itemsize
            assert isinstance(converted, Tensor)
            _replace(model, node, converted)
        return total

    def _select(self, module: fx.GraphModule) -> None:
        for node in module.graph.nodes:
            if node.op != "call_function":
                continue
            name = str(node.target)
            if node.target == PACKED_LINEAR:
                implementation = _ONEDNN if self._onednn else _LIBRARY_LINEAR
                node.target = packed_linear if self._onednn else torch.ops.aten.linear.default
            elif node.target == TREE_ATTENTION:
                node.target, implementation = tree_attention, "scaled_dot_product_attention, one call a request"
            elif node.target in self._collectives:
                node.target, implementation = self._collectives[node.target], "torch.distributed"
            else:
                implementation = "reference" if name.startswith("flexspec") else name
            self._implementations[name] = implementation
        module.recompile()


def _replace(model: ModelGraph, node: fx.Node, value: Tensor) -> None:
    """Give a parameter a value of the graph's own: the module that was given may be trained on or changed."""
    delattr(model.module, str(node.target))
    setattr(model.module, str(node.target), value)


def _linear_weights(model: ModelGraph) -> dict[fx.Node, list[fx.Node]]:
    """Parameters → the nodes that use them as a linear's weight, directly or inside a block."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in model.graph.nodes:
        if node.op == "call_function" and node.target == PACKED_LINEAR:
            found.setdefault(node.args[1], []).append(node)
        elif node.op == "call_module":
            block = getattr(model.module, str(node.target))
            for outer, inner in zip(node.args, block.graph.find_nodes(op="placeholder"), strict=True):
                if any(user.target == PACKED_LINEAR and user.args[1] is inner for user in inner.users):
                    found.setdefault(outer, []).append(node)
    return found


def _split_tied_weights(model: ModelGraph) -> None:
    """Give a weight that serves an embedding and a linear two attributes: only the linear's is reordered."""
    for weight, linears in _linear_weights(model).items():
        if len(weight.users) == len(linears):
            continue
        value, origin = model.parameter(weight), model.origin(weight)
        untied = model.add_parameter(f"{weight.target}_for_linear", value, before=linears[0], origin=origin)
        for node in linears:
            node.replace_input_with(weight, untied)
    model.finish()
