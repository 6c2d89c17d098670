"""Work and bounds against values worked out by hand, of a layer of 2 heads, 1 KV head and 4 dims."""

import pytest

from flexspec.codegen.cuda.report.roofline import (
    H200,
    LAUNCH_S,
    LAYER_7B,
    NOISE_INSTRUCTIONS,
    Chip,
    LayerShape,
    Work,
    attention_work,
    bound,
    combine_work,
    commit_work,
    draft_top_work,
    free_tokens,
    probabilities_work,
    residual_work,
    rope_write_work,
    split_seconds,
    truncate_work,
    verify_work,
)

LAYER = LayerShape(heads=2, kv_heads=1, head_dim=4, layers=3, vocab=10)
CHIP = Chip(name="toy", multiprocessors=4, bytes_per_s=10.0, matrix_flops_per_s=100.0, exponentials_per_s=5.0, instructions_per_s=1000.0)


def test_attention_reads_each_slot_once_and_every_query() -> None:
    # 13 slots of a key and a value of 4 numbers; 3 tokens of 2·4 numbers, read and written; 3 words of bits.
    work = attention_work(LAYER, tokens=3, context=10, cache_bytes=2)
    assert work.moved_bytes == 13 * 2 * 4 * 2 + 2 * 3 * 8 * 2 + 3 * 4
    # Scores and sums: 2 products of 3 tokens x 2 heads x 13 slots x 4 dims, a multiplication and an addition each.
    assert work.matrix_flops == 2 * 2 * 3 * 2 * 13 * 4
    assert work.exponentials == 3 * 2 * 13


def test_a_cache_of_8_bits_halves_its_traffic_alone() -> None:
    two, one = (attention_work(LAYER, tokens=3, context=10, cache_bytes=size) for size in (2, 1))
    assert two.moved_bytes - one.moved_bytes == 13 * 2 * 4
    assert two.matrix_flops == one.matrix_flops


def test_bit_rows_have_whole_words() -> None:
    sizes = [attention_work(LAYER, tokens=tokens, context=0, cache_bytes=2).moved_bytes for tokens in (32, 33)]
    assert sizes[1] - sizes[0] == 2 * 4 * 2 + 2 * 8 * 2 + (33 * 2 - 32) * 4


def test_split_attention_writes_what_the_reduction_reads() -> None:
    whole = attention_work(LAYER, tokens=3, context=10, cache_bytes=2)
    split = attention_work(LAYER, tokens=3, context=10, cache_bytes=2, num_splits=2)
    partial = 2 * 3 * 2 * 5 * 4
    assert split.moved_bytes - whole.moved_bytes == partial - 3 * 8 * 2
    assert combine_work(LAYER, tokens=3, num_splits=2).moved_bytes == partial + 3 * 8 * 2


def test_rope_write() -> None:
    # A token: queries read and written, keys and values read and written, cosines and sines in float32, two integers.
    assert rope_write_work(LAYER, tokens=1, cache_bytes=2).moved_bytes == 2 * 8 * 2 + 2 * 8 * 2 + 2 * 4 * 4 + 8
    assert rope_write_work(LAYER, tokens=5, cache_bytes=1).moved_bytes == 5 * (2 * 8 * 2 + 8 * 2 + 8 * 1 + 2 * 4 * 4 + 8)


def test_commit_moves_a_slot_of_every_layer() -> None:
    assert commit_work(LAYER, moved=2, cache_bytes=2).moved_bytes == 2 * (2 * 3 * 2 * 4 * 2 + 8)


def test_verification_reads_every_logit() -> None:
    assert verify_work(LAYER, nodes=3, with_noise=False) == Work(moved_bytes=3 * 10 * 4)
    assert verify_work(LAYER, nodes=3, with_noise=True).instructions == 3 * 10 * NOISE_INSTRUCTIONS
    assert draft_top_work(LAYER, nodes=3, with_noise=False) == Work(moved_bytes=3 * 10 * 4)
    assert truncate_work(LAYER, nodes=3) == Work(moved_bytes=3 * 10 * 4)
    assert probabilities_work(LAYER, nodes=3) == Work(moved_bytes=3 * 10 * (4 + 8))
    assert residual_work(LAYER, nodes=3) == Work(moved_bytes=3 * 2 * 10 * 8)


def test_programs_take_turns_on_multiprocessors() -> None:
    # A tile, a KV head and 1, 4 or 5 parts: on 4 multiprocessors a quarter of the chip, all of it, and two turns for 5.
    work = {splits: attention_work(LAYER, tokens=3, context=10, cache_bytes=2, num_splits=splits) for splits in (1, 4, 5)}
    seconds = {splits: split_seconds(LAYER, CHIP, tokens=3, context=10, cache_bytes=2, num_splits=splits) for splits in (1, 4, 5)}
    assert seconds[1] == 4 * bound(work[1], CHIP).seconds
    for splits, turns in ((4, 1), (5, 2 * 4 / 5)):
        reduction = bound(combine_work(LAYER, tokens=3, num_splits=splits), CHIP).seconds
        assert seconds[splits] == pytest.approx(turns * bound(work[splits], CHIP).seconds + LAUNCH_S + reduction)


@pytest.mark.parametrize(
    ("work", "resource", "seconds"),
    [
        (Work(moved_bytes=20), "memory", 2.0),
        (Work(moved_bytes=20, matrix_flops=300), "matrix units", 3.0),
        (Work(moved_bytes=20, matrix_flops=300, exponentials=20), "exponentials", 4.0),
        (Work(moved_bytes=20, matrix_flops=300, exponentials=20, instructions=5000), "instructions", 5.0),
    ],
)
def test_the_busiest_resource_bounds(work: Work, resource: str, seconds: float) -> None:
    limit = bound(work, CHIP)
    assert (limit.resource, limit.seconds) == (resource, seconds)


def test_free_nodes_are_where_memory_and_matrix_units_take_as_long() -> None:
    # 4,096 bytes and 16,384·n operations a slot: 4096/4.8e12 = 16384·n/790e12.
    assert free_tokens(LAYER_7B, H200, cache_bytes=2) == pytest.approx(41.15, abs=0.01)
    assert free_tokens(LAYER_7B, H200, cache_bytes=1) == pytest.approx(20.57, abs=0.01)


def test_an_h200_reads_32k_slots_in_28_microseconds() -> None:
    limit = bound(attention_work(LAYER_7B, tokens=1, context=32768, cache_bytes=2), H200)
    assert limit.resource == "memory"
    assert limit.seconds == pytest.approx(28.0e-6, rel=0.01)
    limit = bound(attention_work(LAYER_7B, tokens=64, context=32768, cache_bytes=2), H200)
    assert limit.resource == "matrix units"
    assert limit.seconds == pytest.approx(43.6e-6, rel=0.01)
