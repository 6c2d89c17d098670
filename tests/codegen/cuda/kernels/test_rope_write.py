from dataclasses import dataclass

import pytest
import torch
import triton
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cuda.kernels import rope_write as module
from flexspec.codegen.cuda.kernels.rope_write import rope_write, rope_write_reference, rope_write_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget, find_target
from flexspec.ir.ops.rope import rotate

GARBAGE = 2**30
UNWRITTEN = 77.0


@dataclass(kw_only=True)
class Case:
    """A pass over some requests' tokens, q, k and v being views of one projection."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 64
    rotary_dim: int | None = 64
    dtype: torch.dtype = torch.float32
    cache_dtype: torch.dtype | None = None
    padded_dim: int | None = None
    interleaved: bool = False
    block_size: int = 8
    slots: tuple[int, ...] = (0, 1, 9, -1, 7, 16, -1)
    rows: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 0)
    seed: int = 0

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)
        tokens = len(self.slots)
        projected = torch.randn(tokens, (self.heads + 2 * self.kv_heads) * self.dim, generator=generator).to(self.dtype)
        # What padding holds must not matter.
        projected[torch.tensor(self.slots) < 0] = torch.nan
        sizes = [count * self.dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        self.q, self.k, self.v = (part.unflatten(-1, (-1, self.dim)) for part in projected.split(sizes, dim=-1))
        self.cos = self.sin = None
        if self.rotary_dim is not None:
            # Not mirrored, as models' are, so that each column counts.
            angles = 7 * torch.rand(tokens, self.rotary_dim, generator=generator)
            self.cos, self.sin = angles.cos(), angles.sin()
        num_rows, used = max(self.rows) + 1, max(self.slots) // self.block_size + 1
        # Blocks that a request lacks lie far outside the cache.
        self.tables = torch.full((num_rows, used + 2), GARBAGE, dtype=torch.int32)
        blocks = torch.randperm(num_rows * used, generator=generator).int().view(num_rows, used)
        for slot, row in zip(self.slots, self.rows, strict=True):
            if slot >= 0:
                self.tables[row, slot // self.block_size] = blocks[row, slot // self.block_size]
        self.cache_size = (num_rows * used * self.block_size, self.kv_heads, self.padded_dim or self.dim)

    def run(self, write, **scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # type: ignore[no-untyped-def]
        keys, values = (torch.full(self.cache_size, UNWRITTEN).to(self.cache_dtype or self.dtype) for _ in range(2))
        slots, rows = (torch.tensor(numbers, dtype=torch.int32) for numbers in (self.slots, self.rows))
        arguments = (self.q, self.k, self.v, self.cos, self.sin, keys, values, slots, rows, self.tables)
        rotated = write(*arguments, block_size=self.block_size, interleaved=self.interleaved, **scales)
        assert rotated.is_contiguous()
        return rotated[slots >= 0], keys, values

    def assert_agrees(self) -> None:
        for new, expected in zip(self.run(rope_write), self.run(rope_write_reference), strict=True):
            if self.dtype == torch.bfloat16:
                # Triton's interpreter cuts bits off where a GPU rounds.
                assert torch.allclose(new.float(), expected.float(), rtol=2.0**-7, atol=1e-6)
            else:
                assert torch.equal(new, expected)


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(heads=9, kv_heads=3, dim=128, rotary_dim=128, dtype=torch.float16),  # two groups of query heads
        Case(heads=5, kv_heads=1, dim=96, rotary_dim=96, dtype=torch.bfloat16),
        Case(dim=80, rotary_dim=80, dtype=torch.float16),
        Case(heads=2, kv_heads=1, dim=256, rotary_dim=256),
        Case(dim=80, rotary_dim=32),
        Case(dim=80, rotary_dim=20, dtype=torch.float16),  # pairs that are no multiple of 8
        Case(dim=16, rotary_dim=None),
        Case(dim=20, rotary_dim=20, heads=3, kv_heads=3),
        Case(dim=64, rotary_dim=64, interleaved=True),
        Case(dim=128, rotary_dim=64, interleaved=True, dtype=torch.float16),
        Case(dim=20, rotary_dim=10, interleaved=True, heads=3, dtype=torch.float16),
        Case(dim=20, rotary_dim=20, padded_dim=24),
        Case(block_size=64, slots=(63, 64, 200, -1), rows=(0, 0, 1, 0)),
        Case(slots=(3,), rows=(0,), kv_heads=1),
        Case(slots=(-1, -1), rows=(0, 0)),
        Case(kv_heads=9, heads=9, dim=16, rotary_dim=16),
    ],
    ids=lambda case: f"{case.dim},{case.rotary_dim},{case.interleaved},{case.dtype}",
)
def test_kernel_agrees_with_its_reference(case: Case) -> None:
    case.assert_agrees()


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_any_batch(data: st.DataObject) -> None:
    dim = data.draw(st.sampled_from([16, 24, 40, 80]))
    tokens = data.draw(st.integers(1, 6))
    kv_heads = data.draw(st.integers(1, 3))
    Case(
        dim=dim,
        rotary_dim=data.draw(st.sampled_from([None, dim, dim // 2])),
        interleaved=data.draw(st.booleans()),
        kv_heads=kv_heads,
        heads=kv_heads * data.draw(st.integers(1, 4)),
        block_size=data.draw(st.sampled_from([8, 16, 64])),
        rows=tuple(sorted(data.draw(st.lists(st.integers(0, 2), min_size=tokens, max_size=tokens)))),
        slots=tuple(data.draw(st.lists(st.integers(-1, 90), min_size=tokens, max_size=tokens, unique=True))),
        seed=data.draw(st.integers(0, 99)),
    ).assert_agrees()


@pytest.mark.parametrize("write", [rope_write, rope_write_reference])
def test_what_is_written_where(write) -> None:  # type: ignore[no-untyped-def]
    case = Case(padded_dim=72)
    rotated, keys, values = case.run(write)
    assert case.cos is not None and case.sin is not None
    assert torch.equal(rotated, rotate(case.q, case.cos, case.sin)[torch.tensor(case.slots) >= 0])
    expected_keys, expected_values = (torch.full(case.cache_size, UNWRITTEN) for _ in range(2))
    for token, (slot, row) in enumerate(zip(case.slots, case.rows, strict=True)):
        if slot >= 0:
            place = case.tables[row, slot // 8] * 8 + slot % 8
            expected_keys[place, :, :64] = rotate(case.k, case.cos, case.sin)[token]
            expected_values[place, :, :64] = case.v[token]
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)


@pytest.mark.parametrize("write", [rope_write, rope_write_reference])
def test_interleaved_pairs_are_complex_numbers(write) -> None:  # type: ignore[no-untyped-def]
    case = Case(dim=32, rotary_dim=16, interleaved=True, slots=(0, 1), rows=(0, 0))
    rotated, _, _ = case.run(write)
    assert case.cos is not None and case.sin is not None
    turns = torch.complex(case.cos[:, None, :8], case.sin[:, None, :8])
    pairs = torch.view_as_complex(case.q[..., :16].unflatten(-1, (8, 2)).contiguous())
    assert torch.allclose(rotated[..., :16], torch.view_as_real(pairs * turns).flatten(-2), atol=1e-6)
    assert torch.equal(rotated[..., 16:], case.q[..., 16:])


OLD_INTERPRETER = pytest.mark.skipif(tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9), reason="its interpreter lacks the type")


@pytest.mark.parametrize("cache_dtype", [torch.float8_e4m3fn, pytest.param(torch.float8_e4m3fnuz, marks=OLD_INTERPRETER)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_8_bit_caches_hold_multiples_of_a_head_s_scale(cache_dtype: torch.dtype, interleaved: bool) -> None:
    case = Case(dtype=torch.float16, cache_dtype=cache_dtype, interleaved=interleaved, rotary_dim=32)
    scales = {"k_scales": torch.tensor([0.5, 2.0]), "v_scales": torch.tensor([4.0, 0.25])}
    # Right angles, and numbers that have few bits: the interpreter's rounding to 8 bits is not a GPU's.
    assert case.cos is not None and case.sin is not None
    quarters = torch.randint(0, 4, case.cos.shape)
    case.cos, case.sin = (torch.tensor(turn)[quarters] for turn in ([1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, -1.0]))
    for heads in (case.k, case.v):
        heads.copy_(torch.randint(1, 16, heads.shape) * torch.tensor([-1.0, 1.0])[torch.randint(0, 2, heads.shape)])
    case.k[0, 0, 40], case.v[1, 1, 3] = 1000.0, -1000.0
    rotated, keys, values = case.run(rope_write, **scales)
    expected = case.run(rope_write_reference, **scales)
    assert torch.equal(rotated, expected[0])
    for new, old in ((keys, expected[1]), (values, expected[2])):
        assert torch.equal(new.float(), old.float())
    largest = torch.finfo(cache_dtype).max
    place = case.tables[0, 0] * 8
    assert keys[place, 0, 40].float() == largest and values[place + 1, 1, 3].float() == -largest
    assert torch.equal(values[place, :, 5].float() * scales["v_scales"], case.v[0, :, 5].float())


def test_views_that_begin_anywhere() -> None:
    case = Case(dim=20, rotary_dim=20, heads=3, kv_heads=1, dtype=torch.float16)
    assert case.k.data_ptr() % 16 and not case.k.is_contiguous()
    case.assert_agrees()


def test_what_no_variant_covers_is_named() -> None:
    with pytest.raises(UncoveredCase, match="heads of 272 dims"):
        Case(dim=272, rotary_dim=None).run(rope_write)
    with pytest.raises(UncoveredCase, match=r"torch\.float64"):
        Case(dtype=torch.float64).run(rope_write)
    with pytest.raises(UncoveredCase, match=r"torch\.float16 to a cache of torch\.bfloat16"):
        Case(dtype=torch.float16, cache_dtype=torch.bfloat16).run(rope_write)
    scales = {"k_scales": torch.ones(2), "v_scales": torch.ones(2)}
    case = Case(dtype=torch.float16, cache_dtype=torch.float8_e4m3fn, dim=20, rotary_dim=20)
    with pytest.raises(
        UncoveredCase, match="20 dims, 20 of them turned, to an 8-bit cache: there are multiples of 8 dims and of 16 turned ones"
    ):
        case.run(rope_write, **scales)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_8_bit_types_are_those_of_the_gpu(monkeypatch: pytest.MonkeyPatch, target: GpuTarget) -> None:
    monkeypatch.setattr(module, "device_target", lambda device: target)
    found = {dtype for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz) if module._has_type(dtype, torch.device("cuda"))}
    assert found == ({target.cache_float8} if target.cache_float8 else set())


def test_variants_are_told_apart_by_their_case() -> None:
    for target in TARGETS:
        cases = [variant.case for variant in rope_write_variants(target)]
        assert len(set(cases)) == len(cases) <= 21
    assert not any("float8" in variant.case for variant in rope_write_variants(find_target("sm_80")))
