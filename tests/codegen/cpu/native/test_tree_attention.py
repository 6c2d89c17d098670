import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native_cases import DTYPES, Request, batch_of, columns, path, rounded

from flexspec.codegen.cpu.native import NativeLibrary, NativeProgram, Rotary, padded_head_dim
from flexspec.codegen.kv_storage import KVShape, KVStorage


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [N, heads, head_dim]; cos, sin [N, dim]."""
    dim = cos.shape[1]
    turned = x[..., :dim]
    other = torch.cat([-turned[..., dim // 2 :], turned[..., : dim // 2]], -1)
    return torch.cat([turned * cos[:, None] + other * sin[:, None], x[..., dim:]], -1)


def attend(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    slopes: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """One query [heads, head_dim] that sees all of keys, values [length, kv_heads, head_dim], double precision."""
    group = q.shape[0] // keys.shape[1]
    scores = torch.einsum("hd,jhd->hj", q.double(), keys.double().repeat_interleave(group, 1)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        scores = scores + slopes.double()[:, None] * torch.arange(len(keys))
    if window:
        scores[:, : max(0, len(keys) - window)] = -torch.inf
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None]], 1)
    return torch.einsum("hj,jhd->hd", scores.softmax(1)[:, : len(keys)], values.double().repeat_interleave(group, 1)).float()


def check(
    library: NativeLibrary,
    dtype: torch.dtype,
    requests: list[Request],
    *,
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 8,
    window: int | None = None,
    softcap: float | None = None,
    rotary_dim: int = 0,
    slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Compare with attention over each token's own text, laid out in a row."""
    torch.manual_seed(0)
    block_size = 16
    blocks = max(-(-(r.context + len(r.tokens)) // block_size) for r in requests)
    tables = np.random.default_rng(0).permutation(blocks * len(requests)).astype(np.int32).reshape(len(requests), blocks)
    batch = batch_of(requests, tables)
    n = batch.num_tokens
    shape = KVShape(num_layers=3, num_kv_heads=kv_heads, head_dim=dim, padded_head_dim=padded_head_dim(dim), dtype=dtype)
    kv = KVStorage(shape, num_blocks=blocks * len(requests), block_size=block_size)
    physical = (torch.from_numpy(tables).long()[:, :, None] * block_size + torch.arange(block_size)).flatten(1)
    kv.keys[..., :dim].normal_()
    kv.values[..., :dim].normal_()
    old_keys, old_values = kv.keys[1].float(), kv.values[1].float()
    qkv = torch.randn(n, (heads + 2 * kv_heads) * dim) * 2
    angles = torch.randn(n, max(rotary_dim, 2)) * 9
    cos, sin, out = angles.cos(), angles.sin(), torch.empty(n, heads * dim)
    program = NativeProgram(library, dtype=dtype, num_threads=2)
    program.tree_attention(
        q=columns(qkv, 0, heads * dim),
        k=columns(qkv, heads * dim, kv_heads * dim),
        v=columns(qkv, (heads + kv_heads) * dim),
        out=columns(out),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        layer=1,
        scale=dim**-0.5,
        window=window,
        softcap=softcap,
        rotary=Rotary(cos=columns(cos), sin=columns(sin), dim=rotary_dim) if rotary_dim else None,
        slopes=slopes,
        sinks=sinks,
    )
    program.run(batch, kv)

    q, k, v = (x.unflatten(1, (-1, dim)) for x in qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], 1))
    if rotary_dim:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    q, k, v = (rounded(x, dtype) for x in (q, k, v))
    first = 0
    for row, r in enumerate(requests):
        context = physical[row, : r.context]
        for i in range(len(r.tokens)):
            own = [first + j for j in (path(r, i) if r.parents else range(i + 1))]
            keys = torch.cat([old_keys[context, :, :dim], k[own]])
            values = torch.cat([old_values[context, :, :dim], v[own]])
            expected = attend(q[first + i], keys, values, dim**-0.5, window, softcap, slopes, sinks)
            got = out[first + i].unflatten(0, (-1, dim))
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5 if dtype == torch.float32 else 2e-2)
            slot = physical[row, r.context + i]
            torch.testing.assert_close(kv.keys[1, slot, :, :dim].float(), k[first + i], rtol=1e-2, atol=1e-6)
        first += len(r.tokens)
    for cache in (kv.keys, kv.values):
        assert (cache[..., dim:] == 0).all()


MIXED = [Request(range(3), 40), Request(range(6), 33, (-1, 0, 0, 1, -1, 3)), Request([1]), Request(range(2), 5, (-1, -1))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 8), (9, 3, 64), (5, 5, 80), (7, 1, 24), (2, 2, 128), (40, 1, 16), (2, 1, 7)])
def test_shapes(library: NativeLibrary, dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    check(library, dtype, MIXED, heads=heads, kv_heads=kv_heads, dim=dim)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [1, 3, 16, 41])
def test_window(library: NativeLibrary, dtype: torch.dtype, window: int) -> None:
    check(library, dtype, MIXED, window=window)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_softcap(library: NativeLibrary, dtype: torch.dtype, softcap: float) -> None:
    check(library, dtype, MIXED, softcap=softcap)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"window": 16, "softcap": 2.0}])
def test_slopes(library: NativeLibrary, dtype: torch.dtype, options: dict[str, float]) -> None:
    check(library, dtype, MIXED, slopes=torch.tensor([0.5, 0.0, 0.0883883461, 1.0]), **options)


def test_slopes_of_a_long_prefill(library: NativeLibrary) -> None:
    check(library, torch.float32, [Request(range(70), 130), Request(range(33))], heads=2, kv_heads=1, slopes=torch.tensor([0.25, 0.01]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"window": 16, "softcap": 2.0}])
def test_sinks(library: NativeLibrary, dtype: torch.dtype, options: dict[str, float]) -> None:
    check(library, dtype, MIXED, sinks=torch.tensor([0.0, 3.0, -2.0, 50.0]), **options)


def test_sinks_of_a_long_prefill(library: NativeLibrary) -> None:
    check(library, torch.float32, [Request(range(70), 130), Request(range(33))], heads=2, kv_heads=1, sinks=torch.tensor([2.0, -1.0]))


@pytest.mark.parametrize("rotary_dim", [8, 24])
def test_rotary(library: NativeLibrary, rotary_dim: int) -> None:
    check(library, torch.float32, MIXED, dim=24, rotary_dim=rotary_dim)


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_prefill(library: NativeLibrary, dtype: torch.dtype) -> None:
    check(library, dtype, [Request(range(70), 130), Request(range(33))], heads=6, kv_heads=2, dim=16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_older_instruction_set(older_library: NativeLibrary, dtype: torch.dtype) -> None:
    check(older_library, dtype, MIXED, heads=6, dim=24, rotary_dim=16, window=37)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_trees(library: NativeLibrary, data: st.DataObject) -> None:
    requests = []
    for _ in range(data.draw(st.integers(1, 3))):
        nodes = data.draw(st.integers(1, 40))
        parents = tuple(data.draw(st.integers(-1, i - 1)) for i in range(nodes))
        requests.append(Request(range(nodes), data.draw(st.integers(0, 50)), parents))
    check(library, torch.float32, requests, window=data.draw(st.sampled_from([None, 7])))
