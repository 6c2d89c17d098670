"""From a lowered graph to a compiled model on a GPU."""

import warnings
from collections.abc import Sequence

import torch
from torch import fx

from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.cuda.kernels.attention_plan import plan_attention
from flexspec.codegen.cuda.kernels.rope_write import require_heads
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import device_target
from flexspec.codegen.kv_storage import KVShape
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.cost import all_calls
from flexspec.ir.graph import ModelGraph, fake
from flexspec.ir.ops import ROUTED_EXPERTS, TREE_ATTENTION

_PAGE_SIZE = 16
"""Slots: little is wasted at the end of a text, and a page of a KV head still fills whole memory transactions."""
_HEAD_MULTIPLE = 16
"""Elements: 16 bytes of an 8-bit type, which kernels load at once."""


def compile_for_gpu(
    model: ModelGraph,
    *,
    dtype: torch.dtype,
    max_positions: int | None,
    buckets: Sequence[int],
    store: WeightStore,
    device: torch.device,
    cache_dtype: torch.dtype | None = None,
    allow_references: bool = False,
    compile_blocks: bool = True,
    capture: bool = True,
) -> GpuModel:
    """Generate code for a graph that went through the serving pipeline.

    Args:
        model: the graph; it is used up.
        dtype: of weights and activations.
        max_positions: what the model's position embeddings allow; None for no limit.
        buckets: sizes of a pass, ascending.
        store: where weights are shared with other models.
        device: a GPU; a CPU runs the kernels' references, for tests, and captures nothing.
        cache_dtype: of the KV cache: an 8-bit type, or the model's, which None is.
        allow_references: let references run on a GPU, with a warning, where there is no kernel for the model's heads.
        compile_blocks: False leaves point-wise operators to PyTorch one by one.
        capture: False launches every kernel of every pass from Python.

    Raises:
        UncoveredCase: a UsageError, if there are no kernels for the GPU, these types or the model's heads.
    """
    keys = fake(model.placeholder("keys"))
    num_layers, _, kv_heads, head_dim = (int(dim) for dim in keys.shape)
    shape = KVShape(
        num_layers=num_layers,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        padded_head_dim=-(-head_dim // _HEAD_MULTIPLE) * _HEAD_MULTIPLE,
        dtype=cache_dtype or dtype,
        device=device,
        page_size=_PAGE_SIZE,
    )
    has_host_part = device.type == "cuda" and _has_experts(model, allow_references=allow_references)
    by_reference = not _is_covered(shape, dtype, rotary_dim=_rotary_dim(model), allow_references=allow_references)
    return GpuModel(
        model,
        device=device,
        dtype=dtype,
        kv_shape=shape,
        max_positions=max_positions,
        buckets=buckets,
        store=store,
        compile_blocks=compile_blocks,
        capture=capture and device.type == "cuda" and not by_reference and not has_host_part,
        by_reference=by_reference,
    )


def _has_experts(model: ModelGraph, *, allow_references: bool) -> bool:
    """Whether a model is a mixture of experts, whose reference comes back to the host to learn which experts a pass needs.

    Raises:
        UncoveredCase: if it is one, and references may not run on a GPU.
    """
    if not any(node.target == ROUTED_EXPERTS for node in all_calls(model.module)):
        return False
    case = f"model {model.facts.name} is a mixture of experts, which has kernels on CPUs only: give device='cpu'"
    if not allow_references:
        raise UncoveredCase(f"{case}, or allow_reference_kernels=True")
    warnings.warn(f"references run in the place of kernels, slowly, and no pass is captured: {case}", RuntimeWarning, stacklevel=2)
    return True


def _is_covered(shape: KVShape, dtype: torch.dtype, *, rotary_dim: int, allow_references: bool) -> bool:
    """Whether there are kernels for a model's attention and what surrounds it, which is found out before anything takes long.

    Raises:
        UncoveredCase: if there are none, and references may not run in their place.
    """
    if shape.device.type == "cpu":
        return True
    target = device_target(shape.device)
    try:
        plan_attention(target, dtype, shape.dtype, head_dim=shape.head_dim, rows=1, has_tail=False, general=False)
        require_heads(shape.head_dim, rotary_dim, is_8_bit=shape.dtype != dtype)
    except UncoveredCase as case:
        if not allow_references:
            raise
        warnings.warn(f"references run in the place of kernels, slowly, and no pass is captured: {case}", RuntimeWarning, stacklevel=2)
        return False
    return True


def _rotary_dim(model: ModelGraph) -> int:
    """The most dims of a head that any attention turns."""
    place = [argument.name for argument in TREE_ATTENTION._schema.arguments].index("cos")
    modules = [module for module in model.module.modules() if isinstance(module, fx.GraphModule)]
    nodes = [node for module in modules for node in module.graph.find_nodes(op="call_function", target=TREE_ATTENTION)]
    return max((int(fake(node.args[place]).shape[-1]) for node in nodes if node.args[place] is not None), default=0)
