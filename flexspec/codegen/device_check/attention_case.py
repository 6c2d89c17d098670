"""One layer's attention of a tree over a long context, as three implementations take it."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from flexspec.codegen.cuda.pass_buffers import PassBuffers
from flexspec.codegen.cuda.pass_shape import PassShape, PassSizes
from flexspec.codegen.cuda.report.roofline import LayerShape
from flexspec.codegen.device_check.clock import rotations
from flexspec.codegen.device_check.launchers import launcher
from flexspec.codegen.device_check.part import Context
from flexspec.codegen.device_check.tree_batch import BLOCK_SIZE, blocks_for, tree_batch, visible

Call = Callable[[], Tensor]

_DTYPE = torch.bfloat16
_KEY_MULTIPLE = 16
"""Keys are padded to this, masked, where masks have to be aligned."""


class AttentionCase:
    """Queries of a tree and as many caches as it takes for none to be in the L2 cache when its turn comes again.

    Args:
        context: of the check.
        layer: its sizes.
        nodes: of the tree.
        length: committed slots.
        cache_dtype: of keys and values; only `ours` takes 8-bit ones.

    Attributes:
        shape: of the pass, as the runtime makes it.
        nodes: of the tree.
        length: committed slots.
        cache_dtype: of keys and values.
    """

    def __init__(self, context: Context, layer: LayerShape, *, nodes: int, length: int, cache_dtype: torch.dtype = torch.bfloat16) -> None:
        self._context, self._layer = context, layer
        self.cache_dtype = cache_dtype
        self.nodes, self.length = nodes, length
        device = context.device
        generator = torch.Generator(device).manual_seed(0)
        batch = tree_batch(nodes, length, vocab=layer.vocab)
        is_gpu = device.type == "cuda"
        multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count if is_gpu else 0
        sizes = PassSizes(tokens=(nodes,), heads=layer.heads, kv_heads=layer.kv_heads, multiprocessors=multiprocessors)
        self.shape: PassShape = sizes.shape(batch)
        self._buffers = PassBuffers(self.shape, device=device, feature_size=0, dtype=_DTYPE)
        self._buffers.fill(batch, None)
        self._q = torch.randn((nodes, layer.heads, layer.head_dim), generator=generator, device=device).to(_DTYPE)
        slots = length + nodes
        cache = (blocks_for(slots) * BLOCK_SIZE, layer.kv_heads, layer.head_dim)
        count = rotations(context, 2 * slots * layer.kv_heads * layer.head_dim * cache_dtype.itemsize)
        self._caches = [
            tuple(torch.randn(cache, generator=generator, device=device).to(cache_dtype) for _ in range(2)) for _ in range(count)
        ]
        self._scales = torch.ones(layer.kv_heads, device=device) if cache_dtype.itemsize == 1 else None
        table = torch.from_numpy(batch.block_tables[0]).to(device).long()
        slot = torch.arange(slots, device=device)
        self._places = table[slot // BLOCK_SIZE] * BLOCK_SIZE + slot % BLOCK_SIZE
        self._visible = torch.from_numpy(visible(batch)).to(device)  # [nodes, slots]

    def expected(self) -> Tensor:
        """[nodes, heads, head_dim] of the first cache, in float32."""
        layer = self._layer
        group = layer.heads // layer.kv_heads
        # [heads, slots, head_dim]
        keys, values = (cache.float()[self._places].transpose(0, 1).repeat_interleave(group, dim=0) for cache in self._caches[0])
        scores = self._q.float().transpose(0, 1) @ keys.transpose(1, 2) * layer.head_dim**-0.5
        weights = torch.softmax(scores.masked_fill(~self._visible, -torch.inf), dim=-1)
        return (weights @ values).transpose(0, 1)

    def ours(self) -> list[Call]:
        """The kernel, one call for each cache; each gives [nodes, heads, head_dim]."""
        inputs, shape = self._buffers.inputs, self.shape
        given = [inputs[name] for name in ("tiles", "position_ids", "context_lens", "slots", "tail_starts", "tail_bits", "block_tables")]
        run = launcher("tree_attention", self._context.device)

        def call(keys: Tensor, values: Tensor) -> Call:
            return lambda: run(
                *(self._q, keys, values, *given),
                block_size=BLOCK_SIZE,
                block_tokens=shape.block_tokens,
                kv_heads=self._layer.kv_heads,
                scale=self._layer.head_dim**-0.5,
                num_splits=shape.num_splits,
                k_scales=self._scales,
                v_scales=self._scales,
            )

        return [call(keys, values) for keys, values in self._caches]

    def scaled_dot_product(self) -> list[Call]:
        """PyTorch's attention with a mask added, of contiguous keys; a KV head's query heads are rows, as in the kernel."""
        layer, nodes = self._layer, len(self._q)
        group = layer.heads // layer.kv_heads
        # [1, kv_heads, group * nodes, head_dim]
        q = self._q.view(nodes, layer.kv_heads, group, -1).permute(1, 2, 0, 3).reshape(1, layer.kv_heads, group * nodes, -1)
        masked = torch.nn.functional.pad(self._visible, (0, -self._visible.shape[1] % _KEY_MULTIPLE))
        mask = torch.zeros(masked.shape, dtype=_DTYPE, device=masked.device).masked_fill(~masked, -torch.inf).repeat(group, 1)[None, None]

        def call(keys: Tensor, values: Tensor) -> Call:
            return lambda: (
                torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
                .view(layer.kv_heads, group, nodes, -1)
                .permute(2, 0, 1, 3)
                .reshape(nodes, layer.heads, -1)
            )

        return [call(keys, values) for keys, values in self._contiguous()]

    def flex(self) -> list[Call]:
        """FlexAttention, compiled for this case alone, of contiguous keys."""
        nodes, slots = self._visible.shape
        shown, q = self._visible, self._q.transpose(0, 1)[None].contiguous()

        def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key < slots) & shown[query, key.clamp(max=slots - 1)]

        pairs = self._contiguous()
        length = pairs[0][0].shape[2]
        mask = create_block_mask(sees, None, None, nodes, length, device=str(self._context.device))
        run: Any = flex_attention if self._context.is_dry else torch.compile(flex_attention, dynamic=False, fullgraph=True)

        def call(keys: Tensor, values: Tensor) -> Call:
            def attend() -> Tensor:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # that a dry run does not compile it
                    out: Tensor = run(q, keys, values, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)
                return out

            return attend

        return [call(keys, values) for keys, values in pairs]

    def _contiguous(self) -> list[tuple[Tensor, Tensor]]:
        """The caches as [1, kv_heads, keys, head_dim], in the order of slots, padded with zeros."""
        padding = -len(self._places) % _KEY_MULTIPLE
        return [
            tuple(torch.nn.functional.pad(cache[self._places].transpose(0, 1), (0, 0, 0, padding))[None].contiguous() for cache in pair)  # type: ignore[misc]
            for pair in self._caches
        ]
