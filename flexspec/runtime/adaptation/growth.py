"""Best-first growth of the trees of a whole batch."""

from collections.abc import Callable, Sequence

from flexspec.acceptance import AcceptanceTable
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_budget import subtree


def path_chances(tree: TokenTree, table: AcceptanceTable, max_depth: int) -> list[float]:
    """[nodes] P(node is accepted), from the root down; 0 for nodes deeper than `max_depth`.

    What several drafters propose has the best of their chances.
    """
    chances = [1.0] * len(tree.tokens)
    depths = [0] * len(tree.tokens)
    for node in range(1, len(tree.tokens)):
        parent = tree.parents[node]
        depth = depths[node] = depths[parent] + 1
        best = 0.0
        if depth <= max_depth:
            for drafter, rank, grade in tree.origins[node]:
                chance = table.of(drafter).chance(grade, rank, depth)
                if chance > best:
                    best = chance
        chances[node] = chances[parent] * best
    return chances


def grow(
    trees: Sequence[TokenTree],
    chances: Sequence[Sequence[float]],
    *,
    room: int,
    budget: int,
    cost: Callable[[int], float],
    factor: float = 1.0,
    least_gain: float = 0.0,
) -> tuple[list[TokenTree], float]:
    """The best parts of `trees`: those for which the expected number of accepted tokens, less what they cost, is largest.

    Nodes are taken in the order of their chances, over all trees: as a child's never exceeds its parent's, that is the
    order in which a heap that holds the children of what was taken would give them, and every prefix of it hangs together.
    The sizes nest, so one look at each size finds the best (OPT-Tree and Sequoia grow one tree likewise).

    Args:
        trees: what was proposed to each request.
        chances: as `path_chances` gives them.
        room: most drafted nodes of one tree.
        budget: most drafted nodes of all trees.
        cost: of a number of drafted nodes, in tokens: what could be emitted in the time that they take.
        factor: of all chances, by what came of them before.
        least_gain: the net gain, in tokens, that drafting has to exceed.

    Returns:
        The trees, and the sum of the chances of their drafted nodes.
    """
    order = sorted(
        (-chance, place, node)
        for place, its_chances in enumerate(chances)
        for node, chance in enumerate(its_chances)
        if node and chance > 0.0
    )
    taken = [0] * len(trees)
    within: list[tuple[int, int]] = []
    best_size, best_net, best_gain, gain = 0, least_gain, 0.0, 0.0
    free = cost(0)
    for chance, place, node in order:
        if taken[place] == room:
            continue
        if len(within) == budget:
            break
        taken[place] += 1
        within.append((place, node))
        gain -= chance
        net = factor * gain - (cost(len(within)) - free)
        if net > best_net:
            best_size, best_net, best_gain = len(within), net, gain
    kept: list[list[int]] = [[0] for _ in trees]
    for place, node in within[:best_size]:
        kept[place].append(node)
    grown = [tree if len(nodes) == len(tree.tokens) else subtree(tree, sorted(nodes)) for tree, nodes in zip(trees, kept, strict=True)]
    return grown, best_gain
