"""The part that times passes of whole models by the size of their tree."""

import gc
from collections.abc import Iterator

import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.device_check.attempt import attempt
from flexspec.codegen.device_check.clock import device_seconds
from flexspec.codegen.device_check.part import Context, Row
from flexspec.codegen.device_check.random_llama import RandomLlama
from flexspec.codegen.device_check.sizes import LlamaSize
from flexspec.codegen.device_check.tree_batch import BLOCK_SIZE, blocks_for, tree_batch
from flexspec.codegen.kv_storage import KVStorage

_WEIGHT_BYTES = 2
_OTHER_MEMORY = 4e9
"""Bytes for cache, activations and captured passes."""
_WAYS = ((False, True), (False, False), (True, True), (True, False))
"""Fused and captured; what has to be compiled for long comes last."""


def pass_rows(context: Context, llama: RandomLlama) -> Iterator[Row]:
    """A row for each way of running the model, context and tree."""
    size = llama.size
    for is_fused, is_captured in _WAYS:
        way = f"{size.name}, {'fused' if is_fused else 'not fused'}, {'CUDA graphs' if is_captured else 'no CUDA graphs'}"
        if is_fused and context.is_dry:
            context.leave_out(way, "a dry run compiles nothing")
            continue
        if not context.has_time(way):
            continue
        yield from _rows(context, llama, way, is_fused=is_fused, is_captured=is_captured)


def _rows(context: Context, llama: RandomLlama, way: str, *, is_fused: bool, is_captured: bool) -> Iterator[Row]:
    sizes = context.sizes
    model = llama.compiled(is_fused=is_fused, is_captured=is_captured)
    slots = max(sizes.pass_contexts) + max(sizes.pass_trees)
    kv = KVStorage(model.kv_shape, num_blocks=blocks_for(slots), block_size=BLOCK_SIZE)
    kv.keys.normal_()
    kv.values.normal_()
    for length in sizes.pass_contexts:
        for nodes in sizes.pass_trees:
            if context.has_time(f"{way}, context {length}, {nodes} nodes"):
                row: Row = {"model": llama.size.name, "fused": is_fused, "graphs": is_captured, "context": length, "nodes": nodes}
                batch = tree_batch(nodes, length, vocab=llama.size.vocab)
                yield attempt(row, lambda batch=batch: _measure(context, llama.size, model, batch, kv))  # type: ignore[misc]


def _measure(context: Context, size: LlamaSize, model: GpuModel, batch: Batch, kv: KVStorage) -> Row:
    """Milliseconds from the batch on the host to logits on the device, the device idle before."""
    is_finite = bool(model.forward(batch, kv).isfinite().all())
    seconds = device_seconds(context, lambda: model.forward(batch, kv))
    return {
        "ms": None if seconds is None else round(seconds * 1e3, 3),
        "weights GB/s": None if seconds is None else round(_WEIGHT_BYTES * size.read_parameters / seconds / 1e9),
        "ok": is_finite,
    }


def fits(context: Context, size: LlamaSize) -> bool:
    """Whether a model fits into what is free of the GPU's memory; if not, that is noted."""
    if context.is_dry:
        return True
    free, _ = torch.cuda.mem_get_info(context.device)
    needed = _WEIGHT_BYTES * size.parameters + _OTHER_MEMORY
    if free < needed:
        context.leave_out(f"the {size.name} model", f"it needs {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
    return free >= needed


def release_memory(device: torch.device) -> None:
    """Give back what models that nobody holds any longer took: compiled code and captured graphs refer to them too."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
