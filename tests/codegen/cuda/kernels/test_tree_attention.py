"""Tree attention against causal attention over each token's root path, in Triton's interpreter."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_cases import GARBAGE, Case, Request, chain, tree
from flexspec.codegen.cuda.kernels.attention_plan import attention_plans, plan_attention
from flexspec.codegen.cuda.kernels.combine_splits import combine_splits_variants
from flexspec.codegen.cuda.kernels.tree_attention import tree_attention, tree_attention_reference, tree_attention_variants
from flexspec.codegen.cuda.kernels.variant import UncoveredCase
from flexspec.codegen.cuda.targets import TARGETS, GpuTarget, find_target
from flexspec.codegen.lazy_memory import lazy_zeros

HALF, SINGLE = torch.float16, torch.float32
# Two levels of a draft, a chunk of a prompt and a decoding request: 53 rows of 2 heads share no tile but their own.
MIXED = (tree(37, 9, drafted=26), chain(3, 12), chain(70))


def random_case(draw: st.DrawFn, *, longest: int = 100) -> Case:
    """Few rows and keys a tile: the interpreter takes milliseconds a step."""
    kinds = st.sampled_from(["tree", "chunk", "token"])
    requests: list[Request] = []
    for kind in draw(st.lists(kinds, min_size=1, max_size=2)):
        cached = draw(st.integers(0, longest))
        if kind == "tree":
            requests.append(tree(cached, draw(st.integers(1, 8)), draw(st.integers(0, 70))))
        else:
            requests.append(chain(cached, 1 if kind == "token" else draw(st.integers(1, 8))))
    options: dict[str, Any] = {"num_splits": draw(st.sampled_from([1, 2, 4]))}
    if draw(st.booleans()):
        options["window"] = draw(st.integers(1, 90))
    group = draw(st.sampled_from([1, 2, 3, 8]))
    if draw(st.booleans()):
        options["sinks"] = torch.linspace(-2, 4, group)
    return Case(
        *requests,
        seed=draw(st.integers(0, 1000)),
        group=group,
        block_size=draw(st.sampled_from([8, 16, 32, 64])),
        dtype=draw(st.sampled_from([HALF, SINGLE])),
        **options,
    )


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_node_attends_to_its_root_path(data: st.DataObject) -> None:
    random_case(data.draw).assert_right(tree_attention)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_node_attends_to_its_root_path_after_long_texts(data: st.DataObject) -> None:
    random_case(data.draw, longest=700).assert_right(tree_attention)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_reference_does_so_too(data: st.DataObject) -> None:
    random_case(data.draw).assert_right(tree_attention_reference)


@pytest.mark.parametrize(
    ("requests", "options"),
    [
        ((chain(700), tree(333, 4, drafted=30)), {"num_splits": 4}),
        ((chain(700),), {"window": 200, "num_splits": 2}),
        ((tree(0, 1),), {"num_splits": 4}),
        ((chain(0, 20),), {}),
        ((tree(10, 3, drafted=1021),), {}),
        # 63 slots are seen and 64; in a chunk, the oldest slot that a token sees goes over a multiple of 64.
        ((chain(62), chain(63), tree(63, 1), chain(190, 2)), {}),
        ((chain(160, 8),), {"window": 100}),
    ],
    ids=["long", "long with a window", "one slot", "prompt", "tail of 1024", "whole blocks", "whole blocks of a window"],
)
def test_lengths(requests: tuple[Request, ...], options: dict[str, Any]) -> None:
    Case(*requests, dtype=HALF, **options).assert_right(tree_attention)


@pytest.mark.parametrize("head_dim", [16, 64, 72, 80, 96, 128, 256])
def test_head_sizes(head_dim: int) -> None:
    Case(tree(40, 3, drafted=2), head_dim=head_dim, dtype=SINGLE if head_dim == 96 else HALF, scale=0.1).assert_right(tree_attention)


@pytest.mark.parametrize(("kv_heads", "group", "tile_tokens"), [(3, 1, None), (1, 4, 1), (2, 5, 7), (1, 20, 3), (1, 71, None)])
def test_heads_that_share_a_kv_head(kv_heads: int, group: int, tile_tokens: int | None) -> None:
    # 20 heads of 3 tokens and 71 of 2 take several programs a tile in float32.
    requests = (tree(30, 2, drafted=9),) if group == 71 else (tree(30, 4, drafted=9), chain(5, 3))
    Case(*requests, kv_heads=kv_heads, group=group, tile_tokens=tile_tokens).assert_right(tree_attention)


@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("attention", [tree_attention, tree_attention_reference])
def test_block_sizes(attention: Callable[..., Tensor], block_size: int) -> None:
    # Slots to the end of a block, and the first one of the next.
    Case(tree(60, 2, drafted=2), tree(62, 3), chain(127), chain(128), block_size=block_size, dtype=HALF).assert_right(attention)


SLOPES = torch.tensor([0.25, 0.0625])
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "window": {"window": 9},
    "window within the tail": {"window": 4},
    "softcap": {"softcap": 0.7},
    "slopes": {"slopes": SLOPES},
    "sinks": {"sinks": torch.tensor([4.0, 2.5])},
    "scale": {"scale": 0.9},
    "all": {"window": 20, "softcap": 1.5, "slopes": SLOPES, "sinks": torch.tensor([1.0, -30.0])},
}


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes(name: str, num_splits: int) -> None:
    case = Case(*MIXED, dtype=HALF)
    changes = ATTRIBUTES[name]
    case.assert_right(tree_attention, num_splits=num_splits, **changes)
    case.assert_right(tree_attention_reference, **changes)
    # In every request.
    difference = (case.expected() - case.expected(**changes)).abs().amax(dim=(1, 2))
    assert all(difference[token] > 0.02 for token in (8, 20, 21))


def test_slopes_are_exact_far_down_a_text() -> None:
    Case(chain(900, 2), slopes=torch.tensor([4.0, 0.3]), sinks=torch.tensor([3600.0, 270.0])).assert_right(tree_attention)


@pytest.mark.parametrize("options", [{}, {"window": 12}])
def test_8_bit_cache(options: dict[str, Any]) -> None:
    case = Case(tree(40, 6, drafted=3), kv_heads=2, dtype=HALF, cache_dtype=torch.float8_e4m3fn, **options)
    scales = {"k_scales": torch.tensor([0.5, 2.0]), "v_scales": torch.tensor([3.0, 0.25])}
    for changes in ({}, scales):
        case.assert_right(tree_attention, **changes)
        case.assert_right(tree_attention_reference, **changes)
    assert not torch.allclose(case.expected(), case.expected(**scales), atol=0.1)


def test_cases_that_no_variant_covers() -> None:
    sm_80, sm_90 = find_target("sm_80"), find_target("sm_90")

    def plan(target: GpuTarget, dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int = 64) -> None:
        plan_attention(target, dtype, cache_dtype, head_dim=head_dim, rows=16, has_tail=False, general=False)

    for cache_dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz):
        with pytest.raises(UncoveredCase, match=f"sm_80, queries torch.float16, cache {cache_dtype}.*the cache has the queries' dtype$"):
            plan(sm_80, HALF, cache_dtype)
    with pytest.raises(UncoveredCase, match=r"float8_e4m3fnuz, .*or torch.float8_e4m3fn where"):
        plan(sm_90, HALF, torch.float8_e4m3fnuz)
    with pytest.raises(UncoveredCase, match=r"float32, cache torch.float8"):
        plan(sm_90, SINGLE, torch.float8_e4m3fn)
    with pytest.raises(UncoveredCase, match=r"queries torch.float64"):
        plan(sm_90, torch.float64, torch.float64)
    for head_dim in (8, 36, 264):
        with pytest.raises(UncoveredCase, match=f"head size {head_dim}: head sizes are multiples of 8 from 16 to 256"):
            plan(sm_90, HALF, HALF, head_dim)
    with pytest.raises(UncoveredCase, match=r"33 splits"):
        Case(chain(3)).run(tree_attention, num_splits=33)
    case = Case(chain(3), head_dim=24)
    case.keys = case.keys[..., :24].contiguous()
    with pytest.raises(UncoveredCase, match=r"padded head size 24"):
        case.run(tree_attention)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_variants(target: GpuTarget) -> None:
    variants = tree_attention_variants(target)
    assert len(variants) + len(combine_splits_variants(target)) <= 90
    assert len({variant.case for variant in variants}) == len(variants)
    plans = set(attention_plans(target))
    for dtype, head_dim, rows, (has_tail, general) in itertools.product(
        (torch.bfloat16, SINGLE), (16, 64, 80, 128, 256), (1, 16, 17, 64, 100, 500), ((False, False), (True, False), (False, True))
    ):
        for cache_dtype in {dtype, target.cache_float8 if dtype == torch.bfloat16 else None} - {None}:
            plan = plan_attention(target, dtype, cache_dtype, head_dim=head_dim, rows=rows, has_tail=has_tail, general=general)
            assert plan in plans and plan.block_d >= head_dim


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NaNs, by the interpreter
@pytest.mark.parametrize(
    "options", [{}, {"window": 90, "softcap": 2.0}, {"slopes": SLOPES, "sinks": torch.tensor([4.0, 2.5]), "num_splits": 3}]
)
def test_padding_within_tiles_is_zeros_and_touches_no_other_row(options: dict[str, Any]) -> None:
    # Levels of a drafted tree have rooms that few requests fill; here the last token of each is none.
    requests = (tree(200, 5, drafted=30), chain(130, 4), chain(67), tree(1, 1))
    case = Case(*requests, dtype=HALF, **options)
    expected = case.expected()
    padding = [sum(request.new for request in requests[: row + 1]) - 1 for row in range(len(requests))]
    for token in padding:
        case.slots[token], case.context_lens[token], case.positions[token] = -1, 0, 0
    case.bits[padding], case.q[padding], expected[padding] = 0, torch.nan, 0.0
    torch.testing.assert_close(case.run(tree_attention).double(), expected, atol=4e-3, rtol=4e-3)


def test_a_cache_of_more_than_2_to_the_31_elements() -> None:
    case = Case(tree(20, 3, drafted=2), dtype=HALF, cache_dtype=torch.float8_e4m3fn)
    expected = case.expected()
    first = (2**31 // (8 * 16) + 5) * 8
    size = (first + len(case.keys), 1, 16)
    for name in ("keys", "values"):
        cache = lazy_zeros(size, torch.float8_e4m3fn)
        cache[first:].view(torch.uint8).copy_(getattr(case, name).view(torch.uint8))
        setattr(case, name, cache)
    case.tables[case.tables != GARBAGE] += first // 8
    torch.testing.assert_close(case.run(tree_attention).double(), expected, atol=4e-3, rtol=4e-3)


def test_settings_may_have_any_types_of_numbers() -> None:
    case = Case(chain(40), dtype=HALF)
    wanted = case.run(tree_attention, scale=1.0, softcap=3.0, window=30, sinks=torch.tensor([1.5, -2.0]))
    found = case.run(tree_attention, scale=1, softcap=3, window=30, sinks=torch.tensor([1.5, -2.0], dtype=torch.bfloat16))
    assert torch.equal(found, wanted)
    assert torch.equal(case.run(tree_attention, window=2**40), case.run(tree_attention, window=1000))
