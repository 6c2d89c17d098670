"""One trial of a drafted child: accept it, or keep what it leaves of the LLM's distribution."""

from collections.abc import Sequence

import numpy as np

from flexspec.runtime.distribution import Distribution
from flexspec.runtime.token_tree import Draw, TokenTree


def trials_at(tree: TokenTree, node: int, children: Sequence[dict[int, int]]) -> Sequence[Draw]:
    """The trials at `node` in drawing order; a node without recorded ones has its children tried as point masses.

    Args:
        tree: the drafts.
        node: whose children.
        children: `tree.children()`.
    """
    recorded = tree.draws.get(node)
    if recorded is not None:
        return recorded
    return [Draw(node=child, q=None) for child in children[node].values()]


def acceptance(p: Distribution, token: int, q: Distribution | None, scale: float = 1.0) -> float:
    """min(1, scale * p / q) at `token`, q being a point mass on it if it is None (SpecInfer, section 4.3)."""
    drawn = 1.0 if q is None else q.prob(token)
    assert drawn > 0, f"token {token} was drawn from a distribution that does not have it"
    return min(1.0, scale * p.prob(token) / drawn)


def residual(p: Distribution, token: int, q: Distribution | None, scale: float = 1.0) -> tuple[Distribution, float]:
    """What a rejected trial leaves: max(0, scale * p - q), normalised, and its mass before that.

    q is a point mass on `token` if it is None. Where rounding leaves nothing the distribution is `p` and the mass 0.
    """
    scaled = p.probs * scale
    if q is None:
        left = np.where(p.ids == token, 0.0, scaled)
    else:
        places = np.minimum(np.searchsorted(q.ids, p.ids), len(q.ids) - 1)
        left = np.maximum(scaled - np.where(q.ids[places] == p.ids, q.probs[places], 0.0), 0.0)
    mass = float(left.sum())
    if mass <= 0:
        return p, 0.0
    kept = left > 0
    return Distribution(ids=p.ids[kept], probs=left[kept] / mass), mass
