import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexspec.codegen.cuda.kernels.philox import gumbel_reference, keyed_noise, keyed_noise_reference, keyed_noise_variants
from flexspec.codegen.cuda.targets import TARGETS
from flexspec.runtime.randomness import DRAFTER_STREAMS, GUMBEL_STREAM, MAX_GUMBEL, VERIFIER_STREAM, KeyedNoise, to_gumbel

KEYS = [
    (0, 0, 0, GUMBEL_STREAM),
    (3, 1, 17, GUMBEL_STREAM),
    (2**64 - 1, 5, 2**31 - 1, VERIFIER_STREAM),
    (2**63, 2**31 - 1, 1, DRAFTER_STREAMS + 2**32 - 1),
]


def columns(keys: list[tuple[int, int, int, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    seeds, completions, indices, streams = (np.array(column, dtype=np.uint64) for column in zip(*keys, strict=True))
    int32 = (torch.from_numpy(column.astype(np.int32)) for column in (completions, indices))
    return torch.from_numpy(seeds), *int32, torch.from_numpy(streams.astype(np.int64))


@pytest.mark.parametrize(("first", "count"), [(0, 1), (0, 300), (3, 2), (5, 257), (255, 4), (151_935, 9)])
@pytest.mark.parametrize("make", [keyed_noise, keyed_noise_reference])
def test_words_and_noise_are_those_of_the_runtime(make, first: int, count: int) -> None:  # type: ignore[no-untyped-def]
    raw, noise = make(*columns(KEYS), first=first, count=count)
    for row, (seed, completion, index, stream) in enumerate(KEYS):
        keyed = KeyedNoise(seed, completion)
        expected = keyed.bits(first, count, index=index, stream=stream)
        assert np.array_equal(raw[row].numpy().view(np.uint64), expected)
        assert np.allclose(noise[row].numpy(), to_gumbel(expected), rtol=1e-12, atol=1e-12)


@settings(max_examples=15, deadline=None)
@given(
    key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)),
    ids=st.tuples(st.integers(0, 2**18), st.integers(1, 20)),
)
def test_any_key(key: tuple[int, int, int], ids: tuple[int, int]) -> None:
    first, count = ids
    seed, completion, index = key
    _, noise = keyed_noise(*columns([(*key, GUMBEL_STREAM)]), first=first, count=count)
    expected = KeyedNoise(seed, completion).gumbel(np.arange(first, first + count), index=index)
    assert np.allclose(noise[0].numpy(), expected, rtol=1e-12, atol=1e-12)


def test_noise_from_exact_complements_is_as_good_at_the_ends() -> None:
    raw = np.array([0, 2**11 - 1, 2**11, 2**12, 2**40, 2**63, 2**64 - 2**12, 2**64 - 1], dtype=np.uint64)
    uniform = np.maximum((raw >> np.uint64(11)).astype(np.float64) * 2.0**-53, 2.0**-53)
    assert np.allclose(-np.log(-np.log(1.0 - uniform)), to_gumbel(raw), rtol=1e-12, atol=1e-12)
    assert gumbel_reference(raw)[0] == pytest.approx(MAX_GUMBEL) and np.isfinite(gumbel_reference(raw)).all()


def test_there_is_one_variant() -> None:
    assert [len(keyed_noise_variants(target)) for target in TARGETS] == [1] * len(TARGETS)
