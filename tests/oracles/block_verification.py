"""Block verification (Sun et al., "Block verification accelerates speculative decoding", 2024, algorithm 2), written from the paper."""

from collections.abc import Sequence

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.draws import Draws
from oracles.proposals import Table, Text, to_distribution

VOCAB = 8


def verify_block(text: Text, drafts: Sequence[int], p: Table, q: Table, draws: Draws) -> tuple[int, Text]:
    """Number of accepted drafts of a chain drawn from `q`, and the text with them and the bonus token."""
    joint = [1.0]  # the paper's p_i
    for place, token in enumerate(drafts):
        before = (*text, *drafts[:place])
        joint.append(min(joint[-1] * p(before).prob(token) / q(before).prob(token), 1.0))
    accepted = 0
    for length in range(1, len(drafts) + 1):
        path = (*text, *drafts[:length])
        if length == len(drafts):
            threshold = joint[length]
        else:
            mass = sum(_excess(joint[length], p(path), q(path)))
            threshold = mass / (mass + 1 - joint[length]) if mass > 0 else 0.0
        if draws.bernoulli(threshold):
            accepted = length
    path = (*text, *drafts[:accepted])
    left = _excess(joint[accepted], p(path), q(path)) if accepted < len(drafts) else [0.0]
    # Where p is q, rounding alone leads here.
    return accepted, (*path, draws.choice(to_distribution(left) if any(left) else p(path)))


def _excess(scale: float, p: Distribution, q: Distribution) -> list[float]:
    return [max(scale * p.prob(token) - q.prob(token), 0.0) for token in range(VOCAB)]
