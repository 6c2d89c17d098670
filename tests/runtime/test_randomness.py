import numpy as np
import pytest
from scipy import stats

from flexspec.runtime.randomness import (
    DRAFTER_STREAMS,
    GUMBEL_STREAM,
    MAX_GUMBEL,
    VERIFIER_STREAM,
    KeyedNoise,
    bits_above,
    fresh_seed,
    to_gumbel,
    to_uniform,
)

WORD = 2**64 - 1


def philox_block(counter: tuple[int, int, int, int], key: tuple[int, int]) -> list[int]:
    """Philox 4x64-10 as the paper writes it."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * c0, 2**64)
        high1, low1 = divmod(0xCA5A826395121157 * c2, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + 0x9E3779B97F4A7C15 & WORD, k1 + 0xBB67AE8584CAA73B & WORD
    return [c0, c1, c2, c3]


@pytest.mark.parametrize("seed", [0, 1, 2**63 + 5, WORD])
@pytest.mark.parametrize("completion", [0, 3])
@pytest.mark.parametrize("index", [0, 1, 2047])
@pytest.mark.parametrize("stream", [GUMBEL_STREAM, VERIFIER_STREAM, DRAFTER_STREAMS + 12345])
def test_bits_are_those_of_an_independent_philox(seed: int, completion: int, index: int, stream: int) -> None:
    noise = KeyedNoise(seed, completion)
    for start, count in ((0, 9), (5, 1), (49149, 6)):
        expected = [philox_block((word // 4, index, stream, 0), (seed, completion))[word % 4] for word in range(start, start + count)]
        assert noise.bits(start, count, index=index, stream=stream).tolist() == expected


def test_noise_of_some_ids_is_that_of_the_whole_vocabulary() -> None:
    noise = KeyedNoise(17)
    whole = noise.gumbel(np.arange(6000), index=40)
    ids = np.array([0, 1, 2, 3, 7, 700, 701, 1500, 2100, 2101, 2300, 5999])
    np.testing.assert_array_equal(noise.gumbel(ids, index=40), whole[ids])
    np.testing.assert_array_equal(KeyedNoise(17).gumbel(ids[5:6], index=40), whole[ids[5:6]])
    assert noise.gumbel(ids[:0], index=40).shape == (0,)


def test_every_part_of_the_key_changes_the_noise() -> None:
    ids = np.arange(16)
    base = KeyedNoise(1, 0).gumbel(ids, index=5)
    for other in (KeyedNoise(2, 0).gumbel(ids, index=5), KeyedNoise(1, 1).gumbel(ids, index=5), KeyedNoise(1, 0).gumbel(ids, index=6)):
        assert not np.intersect1d(base, other).size


def test_noise_follows_the_gumbel_law() -> None:
    noise = KeyedNoise(3)
    over_ids = noise.gumbel(np.arange(20_000), index=9)
    over_positions = np.array([noise.gumbel(np.array([123]), index=index)[0] for index in range(4000)])
    for sample in (over_ids, over_positions):
        assert stats.kstest(sample, "gumbel_r").pvalue > 0.01


def test_extreme_numbers_give_finite_noise() -> None:
    noise = to_gumbel(np.array([0, 1 << 11, 2 << 11, WORD], dtype=np.uint64))
    assert np.isfinite(noise).all()
    assert noise[0] == noise[1] == pytest.approx(MAX_GUMBEL, abs=1e-9)
    assert noise[2] < noise[1]
    assert noise[3] == pytest.approx(-np.log(53 * np.log(2)))


@pytest.mark.parametrize("threshold", [-1000.0, -3.0, 0.0, 1.5, 10.0, 20.0, 36.0, 40.0])
def test_noise_above_a_threshold_comes_from_bits_below_the_bound(threshold: float) -> None:
    bound = bits_above(threshold)
    step = max(bound // 2**40, 2048)
    near = [min(max(bound + step * offset, 0), WORD) for offset in range(-50, 50)]
    raw = np.concatenate(
        [KeyedNoise(1).bits(0, 20_000, index=0, stream=7), np.array(near + list(range(0, 1 << 16, 1 << 11)), dtype=np.uint64)]
    )
    assert (raw[to_gumbel(raw) >= threshold] <= bound).all()
    if threshold == 10.0:
        assert to_uniform(np.array([bound], dtype=np.uint64))[0] == pytest.approx(np.exp(-10.0), rel=1e-3)


def test_fresh_seeds_differ() -> None:
    seeds = {fresh_seed() for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed <= WORD for seed in seeds)
