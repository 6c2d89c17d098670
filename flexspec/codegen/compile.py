"""From a lowered graph to a compiled model on the CPU: native kernels where they can be built, PyTorch operators elsewhere."""

import warnings

import torch

from flexspec.codegen.cpu.instruction_list import UnsupportedOperator
from flexspec.codegen.cpu.native.build import NativeBuildError, NativeUnavailable
from flexspec.codegen.cpu.native.library import load_library
from flexspec.codegen.cpu.native.operands import padded_head_dim
from flexspec.codegen.cpu.native_model import NativeModel
from flexspec.codegen.cpu.torch_model import TorchModel
from flexspec.codegen.kv_storage import KVShape
from flexspec.codegen.parallel_group import ParallelGroup
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.graph import ModelGraph, fake


def compile_for_cpu(
    model: ModelGraph,
    *,
    dtype: torch.dtype,
    max_positions: int | None,
    max_pass_tokens: int,
    store: WeightStore,
    native: bool = True,
    group: ParallelGroup | None = None,
) -> NativeModel | TorchModel:
    """Generate code for a graph that went through the serving pipeline.

    Args:
        model: the graph; it may be used up.
        dtype: of weights and KV cache, float32 or bfloat16.
        max_positions: what the model's position embeddings allow; None for no limit.
        max_pass_tokens: most tokens of one pass; the activations' memory is made for it.
        store: where laid-out weights are shared with other models.
        native: False keeps to PyTorch operators.
        group: the ranks that the graph's parallel operators are about; None if it has none.

    Returns:
        The compiled model; its `lowering` tells the target, and why not the native one.
    """
    shape = _kv_shape(model, dtype)
    reason, compile_failed = "not asked for", False
    if native:
        try:
            return NativeModel(
                model,
                load_library(),
                kv_shape=shape,
                max_positions=max_positions,
                max_pass_tokens=max_pass_tokens,
                store=store,
                num_threads=torch.get_num_threads(),
                group=group,
            )
        except NativeUnavailable as error:
            reason, compile_failed = str(error), isinstance(error, NativeBuildError)
            if compile_failed:
                warnings.warn(f"the native kernels could not be built, so slower ones run: {reason}", RuntimeWarning, stacklevel=2)
        except UnsupportedOperator as error:
            reason = f"no native form of {error}"
    return TorchModel(
        model,
        kv_shape=shape,
        max_positions=max_positions,
        max_pass_tokens=max_pass_tokens,
        store=store,
        reason=reason,
        compile_failed=compile_failed,
        group=group,
    )


def _kv_shape(model: ModelGraph, dtype: torch.dtype) -> KVShape:
    keys = fake(model.placeholder("keys"))
    num_layers, _, kv_heads, head_dim = (int(dim) for dim in keys.shape)
    return KVShape(num_layers=num_layers, num_kv_heads=kv_heads, head_dim=head_dim, padded_head_dim=padded_head_dim(head_dim), dtype=dtype)
