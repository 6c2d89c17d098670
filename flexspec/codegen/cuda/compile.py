"""From a lowered graph to a compiled model on a GPU."""

from collections.abc import Sequence

import torch

from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.kv_storage import KVShape
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph, fake

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
    compile_blocks: bool = True,
    capture: bool = True,
) -> GpuModel:
    """Generate code for a graph that went through the serving pipeline.

    Args:
        model: the graph; it is used up.
        dtype: of weights and KV cache.
        max_positions: what the model's position embeddings allow; None for no limit.
        buckets: sizes of a pass, ascending.
        store: where weights are shared with other models.
        device: a GPU; a CPU runs the kernels' references, for tests, and captures nothing.
        compile_blocks: False leaves point-wise operators to PyTorch one by one.
        capture: False launches every kernel of every pass from Python.
    """
    keys = fake(model.placeholder("keys"))
    num_layers, _, kv_heads, head_dim = (int(dim) for dim in keys.shape)
    shape = KVShape(
        num_layers=num_layers,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        padded_head_dim=-(-head_dim // _HEAD_MULTIPLE) * _HEAD_MULTIPLE,
        dtype=dtype,
        device=device,
        page_size=_PAGE_SIZE,
    )
    return GpuModel(
        model,
        device=device,
        kv_shape=shape,
        max_positions=max_positions,
        buckets=buckets,
        store=store,
        compile_blocks=compile_blocks,
        capture=capture and device.type == "cuda",
    )
