"""Drawing without replacement."""

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws


def draw_distinct(draws: Draws, q: Distribution, count: int) -> list[tuple[int, Distribution]]:
    """Up to `count` different tokens, each with what it was drawn from: `q` without those before it, renormalised.

    Fewer where the support of `q` is used up (Chen et al., "Sequoia", 2024, section 3.2).
    """
    drawn: list[tuple[int, Distribution]] = []
    left: Distribution | None = q
    while left is not None and len(drawn) < count:
        token = draws.choice(left)
        drawn.append((token, left))
        left = left.without(token)
    return drawn
