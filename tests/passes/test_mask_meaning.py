"""Masks and biases with a known meaning, and ones that have none."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from flexspec.passes.mask_meaning import Meaning, NotUnderstood, combined, meaning_of

HEADS, LENGTH = 2, 9
SLOPES = torch.tensor([0.25, 0.0625])


def distance(length: int) -> Tensor:
    """Of a key behind a query, [queries, keys]."""
    return torch.arange(length)[:, None] - torch.arange(length)[None, :]


def found(scores: Callable[[Tensor, Tensor], Tensor], length: int = LENGTH) -> Meaning:
    return meaning_of(lambda products: scores(products, distance(length)), batch=2, heads=HEADS, length=length)


def causal(x: Tensor, d: Tensor) -> Tensor:
    return x.masked_fill(d < 0, -torch.inf)


@pytest.mark.parametrize("masked", [-torch.inf, torch.finfo(torch.float32).min, -1e9, -10000.0])
def test_causal(masked: float) -> None:
    assert found(lambda x, d: x * 0.5 + torch.where(d < 0, masked, 0.0)) == Meaning(scale=0.5)


def test_window() -> None:
    def scores(x: Tensor, d: Tensor) -> Tensor:
        return (x / 4).masked_fill((d < 0) | (d >= 3), -1e9)

    assert found(scores) == Meaning(scale=0.25, window=3)
    assert combined(found(scores, 3), found(scores)).window == 3


@pytest.mark.parametrize("zero", [0, LENGTH - 1, 30])
def test_slopes_wherever_they_are_zero(zero: int) -> None:
    positions = torch.arange(LENGTH) - zero
    meaning = found(lambda x, d: causal(x * 0.5 + SLOPES[:, None, None] * positions, d))
    assert meaning.slopes == pytest.approx(SLOPES.tolist(), abs=1e-5) and meaning.window is None
    assert zero == 30 or meaning.slopes == tuple(SLOPES.tolist())


def test_slopes_by_distance() -> None:
    assert found(lambda x, d: causal(x - SLOPES[:, None, None] * d, d)).slopes == tuple(SLOPES.tolist())


def test_softcap() -> None:
    meaning = found(lambda x, d: causal(5 * torch.tanh(x * 0.3 / 5), d))
    assert (meaning.scale, meaning.softcap) == (pytest.approx(0.3, rel=1e-4), pytest.approx(5.0, rel=1e-6))


def two_texts(x: Tensor, d: Tensor) -> Tensor:
    text = torch.arange(len(d)) // 4
    return causal(x, d).masked_fill(text[:, None] != text[None, :], -torch.inf)


NOT_UNDERSTOOD: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str]] = {
    "no mask": (lambda x, d: x, "neither causal nor a sliding window; of 9 tokens .* 111111"),
    "two texts": (two_texts, "neither causal nor"),
    "a hole behind what is drawn": (lambda x, d: causal(x, d).masked_fill(d == 7, -1e9), "110000 .* 111111; query 7 does not see key 0"),
    "itself unseen": (lambda x, d: x.masked_fill(d < 1, -1e9), "neither causal nor"),
    "a head apart": (lambda x, d: causal(x, d).masked_fill((torch.arange(2)[:, None, None] == 1) & (d > 2), -1e9), "not the same for all"),
    "a bias of distances in buckets": (lambda x, d: causal(x - d.clamp(max=3), d), "does not grow evenly"),
    "squares": (lambda x, d: causal(x * x, d), "not products of queries and keys times a factor"),
    "mixed queries": (lambda x, d: causal(x + x.roll(1, -1), d), "not products of queries and keys times a factor"),
}


@pytest.mark.parametrize("name", NOT_UNDERSTOOD)
def test_what_is_not_understood_is_shown(name: str) -> None:
    scores, message = NOT_UNDERSTOOD[name]
    with pytest.raises(NotUnderstood, match=message):
        found(scores)


def test_sizes_must_agree() -> None:
    with pytest.raises(NotUnderstood, match="its window is 3 in a short text and 4"):
        combined(Meaning(scale=1.0, window=3), Meaning(scale=1.0, window=4))
    for other in (Meaning(scale=2.0), Meaning(scale=1.0, softcap=3.0), Meaning(scale=1.0, slopes=(0.5,))):
        with pytest.raises(NotUnderstood, match="not the same in a short text"):
            combined(Meaning(scale=1.0), other)
