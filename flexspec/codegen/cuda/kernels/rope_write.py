"""Rotary embedding of queries and keys (Su et al., 2021), and the writing of keys and values to the paged cache."""

import torch
import triton
from torch import Tensor

from flexspec.codegen.cuda.kernels.rope_write_kernel import FLOATS, INTEGERS, SCALES, SIZES, STRIDES, rope_write_kernel
from flexspec.codegen.cuda.kernels.variant import KernelVariant, UncoveredCase, launch_options, triton_type
from flexspec.codegen.cuda.targets import GpuTarget, device_target
from flexspec.ir.ops.rope import rotate

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_CACHE_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e4m3fnuz: 240.0}
"""The 8-bit types of caches, and their largest numbers."""
_UNIT = 8
"""Elements: 16 bytes of a 16-bit type, which a thread loads at once."""
_ALIGNMENT = 16
_MAX_DIM = 256
_HEADS = 4
"""Heads of a program."""
_SHAPES = ((_UNIT, 128, False), (_UNIT, _MAX_DIM, False), (_UNIT, _MAX_DIM, True), (1, _MAX_DIM, False), (1, _MAX_DIM, True))
"""What there are variants for: elements that sizes are multiples of, most dims of a head, and whether pairs are interleaved."""
_NUM_WARPS = 1
_NUM_STAGES = 1


def rope_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    request_rows: Tensor,
    block_tables: Tensor,
    *,
    block_size: int,
    interleaved: bool = False,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """Rotate queries and keys, and write keys and values of all tokens to where their slots lie.

    Rotation is float32 and rounds once, as `flexspec.ir.ops.rope` does.

    Args:
        q: [N, heads, head_dim], possibly a strided view with contiguous heads.
        k: [N, kv_heads, head_dim], likewise.
        v: as `k`.
        cos: [N, rotary_dim] float32, contiguous, rotary_dim <= head_dim; dims beyond pass through. None for no rotation.
        sin: as `cos`.
        keys: [slots, kv_heads, padded head_dim] of one layer, of q's type or 8-bit; the padding is not written.
        values: as `keys`.
        slots: [N] int32, slots of the tokens' requests; nothing is written for -1.
        request_rows: [N] int32, rows of `block_tables`.
        block_tables: [R, B] int32; slot s of row r lies at block_tables[r, s // block_size] * block_size + s % block_size.
        block_size: slots of a block.
        interleaved: whether pairs are adjacent dims, pair i turned by column i of cos and sin, and not the two halves' dims.
        k_scales: [kv_heads] float32, for an 8-bit cache: what is stored, times these, is the key.
        v_scales: as `k_scales`.

    Returns:
        The queries, [N, heads, head_dim], contiguous.

    Raises:
        UncoveredCase: for other types, larger heads than 256 dims, an odd number of dims or pairs, or an 8-bit cache where the GPU
            has no such type.
    """
    num_tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    cache_max = _cache_max(q, keys)
    rotated = torch.empty((num_tokens, heads, dim), dtype=q.dtype, device=q.device)
    if cos is None or sin is None:
        cos = sin = torch.empty((num_tokens, 0), dtype=torch.float32, device=q.device)
    assert cos.is_contiguous() and sin.is_contiguous() and cos.dtype == sin.dtype == torch.float32 and cos.shape == sin.shape
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1 and keys.stride() == values.stride() and keys.stride(2) == 1
    assert (cache_max > 0) == (k_scales is not None) == (v_scales is not None), f"scales are for 8-bit caches, this one is {keys.dtype}"
    q, k, v, cos, sin = (_aligned(tensor) for tensor in (q, k, v, cos, sin))
    strides = [*_strides(q), *_strides(k), *_strides(v), *_strides(keys)]
    half = cos.shape[1] // 2
    require_heads(dim, 2 * half, is_8_bit=cache_max > 0)
    unit = _UNIT if all(size % _UNIT == 0 for size in (dim, half, *strides)) else 1
    if cache_max and unit == 1:
        raise UncoveredCase(f"rope_write with strides {strides} to an 8-bit cache: they are multiples of {_UNIT}")
    block_dim = _block_dim(dim, unit, interleaved=interleaved)
    if num_tokens:
        rope_write_kernel[(num_tokens, triton.cdiv(heads, _HEADS) + triton.cdiv(kv_heads, _HEADS))](
            *(q, k, v, cos, sin, rotated, keys, values, slots, request_rows, block_tables, k_scales, v_scales),
            *(stride // unit for stride in strides),
            *(block_tables.stride(0), heads, kv_heads, dim // unit, half // unit, block_size),
            INTERLEAVED=interleaved,
            UNIT=unit,
            CACHE_MAX=cache_max,
            BLOCK_DIM=block_dim,
            HEADS=_HEADS,
            **launch_options(_NUM_WARPS, _NUM_STAGES),
        )
    return rotated


def require_heads(dim: int, rotary_dim: int, *, is_8_bit: bool) -> None:
    """Refuse heads that there are no variants for.

    Args:
        dim: of a head.
        rotary_dim: dims of it that are turned.
        is_8_bit: whether keys and values are written to an 8-bit cache.

    Raises:
        UncoveredCase: if there are none.
    """
    if dim > _MAX_DIM or dim % 2:
        raise UncoveredCase(f"rope_write of heads of {dim} dims: there are even ones up to {_MAX_DIM}")
    if is_8_bit and (dim % _UNIT or rotary_dim % (2 * _UNIT)):
        raise UncoveredCase(
            f"rope_write of heads of {dim} dims, {rotary_dim} of them turned, to an 8-bit cache: there are multiples of {_UNIT} dims "
            f"and of {2 * _UNIT} turned ones"
        )


def _cache_max(q: Tensor, keys: Tensor) -> float:
    """The largest number of an 8-bit cache; 0 for one of q's type."""
    if q.dtype not in _DTYPES:
        raise UncoveredCase(f"rope_write of {q.dtype}: {', '.join(map(str, _DTYPES))} are there")
    if keys.dtype == q.dtype:
        return 0.0
    if keys.dtype not in _CACHE_MAX or q.dtype == torch.float32:
        raise UncoveredCase(
            f"rope_write of {q.dtype} to a cache of {keys.dtype}: it has to be {q.dtype}, or an 8-bit one of a 16-bit model"
        )
    if not _has_type(keys.dtype, keys.device):
        raise UncoveredCase(
            f"rope_write to a cache of {keys.dtype} on {torch.cuda.get_device_name(keys.device)}: 8-bit caches are for NVIDIA's sm_90 "
            "and sm_100 (torch.float8_e4m3fn) and AMD's gfx942 (torch.float8_e4m3fnuz)"
        )
    return _CACHE_MAX[keys.dtype]


def _has_type(cache_dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a device has an 8-bit type; Triton's interpreter has all."""
    return device.type == "cpu" or device_target(device).cache_float8 == cache_dtype


def _strides(heads: Tensor) -> tuple[int, int]:
    """Strides of tokens and of heads; what is there once has none."""
    return heads.stride(0) if heads.shape[0] > 1 else 0, heads.stride(1) if heads.shape[1] > 1 else 0


def _aligned(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy if it begins where a thread can't load 16 bytes."""
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone(memory_format=torch.contiguous_format)


def _block_dim(dim: int, unit: int, *, interleaved: bool) -> int:
    """Dims of a program; the common case has one of its own."""
    return 128 if dim <= 128 and unit == _UNIT and not interleaved else _MAX_DIM


def rope_write_variants(target: GpuTarget) -> list[KernelVariant]:
    """Every specialisation that `rope_write` launches."""
    caches = [(dtype, dtype) for dtype in _DTYPES]
    if target.cache_float8 is not None:
        caches += [(dtype, target.cache_float8) for dtype in _DTYPES if dtype.itemsize == 2]
    return [
        _variant(dtype, cache_dtype, unit=unit, block_dim=block_dim, interleaved=interleaved)
        for dtype, cache_dtype in caches
        for unit, block_dim, interleaved in _SHAPES
        if unit == _UNIT or cache_dtype == dtype
    ]


def _variant(dtype: torch.dtype, cache_dtype: torch.dtype, *, unit: int, block_dim: int, interleaved: bool) -> KernelVariant:
    cache_max = _CACHE_MAX.get(cache_dtype, 0.0)
    scales = {name: "*fp32" if cache_max else "constexpr" for name in SCALES}
    constants = {"INTERLEAVED": interleaved, "UNIT": unit, "CACHE_MAX": cache_max, "BLOCK_DIM": block_dim, "HEADS": _HEADS}
    return KernelVariant(
        kernel="rope_write",
        case=", ".join(
            [
                str(dtype).removeprefix("torch."),
                *([f"cache {str(cache_dtype).removeprefix('torch.')}"] if cache_max else []),
                f"dims to {block_dim}",
                *(["adjacent pairs"] if interleaved else []),
                *(["odd sizes"] if unit == 1 else []),
            ]
        ),
        function=rope_write_kernel,
        signature={
            **{name: triton_type(dtype) for name in ("q", "k", "v")},
            **{name: "*fp32" for name in ("cos", "sin")},
            "rotated": triton_type(dtype),
            **{name: triton_type(cache_dtype) for name in ("keys", "values")},
            **{name: "*i32" for name in INTEGERS},
            **scales,
            **{name: "i32" for name in (*STRIDES, *SIZES)},
            **{name: "constexpr" for name in constants},
        },
        constants=constants if cache_max else {**{name: None for name in SCALES}, **constants},
        divisible=frozenset(FLOATS),
        num_warps=_NUM_WARPS,
        num_stages=_NUM_STAGES,
    )


def rope_write_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    request_rows: Tensor,
    block_tables: Tensor,
    *,
    block_size: int,
    interleaved: bool = False,
    k_scales: Tensor | None = None,
    v_scales: Tensor | None = None,
) -> Tensor:
    """As `rope_write`, for any number of dims."""
    kept = slots >= 0
    slot, rows = slots[kept].long(), request_rows[kept].long()
    places = block_tables[rows, slot // block_size].long() * block_size + slot % block_size
    for cache, heads, scales in ((keys, _rotated(k, cos, sin, interleaved), k_scales), (values, v, v_scales)):
        written = heads[kept]
        if scales is not None:
            most = _CACHE_MAX[cache.dtype]
            written = (written.float() / scales[:, None]).clamp(-most, most)
        # As bytes: 8-bit floats can't be put at indices.
        written = written.to(cache.dtype).contiguous()
        cache[..., : k.shape[2]].view(torch.uint8)[places] = written.view(torch.uint8)
    # An operator's result is never one of its arguments.
    return _rotated(q, cos, sin, interleaved).clone(memory_format=torch.contiguous_format)


def _rotated(x: Tensor, cos: Tensor | None, sin: Tensor | None, interleaved: bool) -> Tensor:
    """`x` [N, heads, head_dim] with its first dims turned."""
    if cos is None or sin is None:
        return x
    if not interleaved:
        return rotate(x, cos, sin)
    rotary_dim = cos.shape[1]
    # [tokens, 1, pairs]
    pair_cos, pair_sin = (table[:, None, : rotary_dim // 2].float() for table in (cos, sin))
    even, odd = x[..., 0:rotary_dim:2].float(), x[..., 1:rotary_dim:2].float()
    turned = torch.stack([even * pair_cos - odd * pair_sin, odd * pair_cos + even * pair_sin], dim=-1).flatten(-2)
    return torch.cat([turned.to(x.dtype), x[..., rotary_dim:]], dim=-1)
