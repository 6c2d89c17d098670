"""Several drafters' trees as one."""

from collections.abc import Sequence

from flexspec.runtime.token_tree import Draw, Origin, TokenTree


def merge_trees(root: int, proposals: Sequence[tuple[str, TokenTree]]) -> TokenTree:
    """Fold proposals into one tree that says of each node who proposed it (SpecInfer, section 3, merge-based construction).

    At a node the trials of the first drafter come first: stochastic verification needs an order that is fixed before
    anything is drawn. Children without a record of trials were chosen.

    Args:
        root: the last token of the text.
        proposals: names of drafters, all different, and their trees.
    """
    tokens, parents = [root], [-1]
    grades = [0]
    origins: list[list[Origin]] = [[]]
    places: dict[tuple[int, int], int] = {}  # of the child with a token, by its parent and the token
    handles: list[list[int]] = []  # for each proposal, where its nodes are
    for drafter, tree in proposals:
        assert tree.tokens[0] == root, "trees of different roots cannot be merged"
        at = [0]
        ranks = [0] * len(tree.tokens)
        for node in range(1, len(tree.tokens)):
            above, token = tree.parents[node], tree.tokens[node]
            grade = tree.grades[node] if tree.grades else 0
            origin = Origin(drafter, ranks[above], grade)
            ranks[above] += 1
            key = (at[above], token)
            place = places.get(key)
            if place is None:
                place = places[key] = len(tokens)
                tokens.append(token)
                parents.append(key[0])
                grades.append(grade)
                origins.append([origin])
            else:
                origins[place].append(origin)
            at.append(place)
        handles.append(at)
    draws = _merge_draws(proposals, handles) if any(tree.draws for _, tree in proposals) else {}
    return TokenTree(tokens=tokens, parents=parents, draws=draws, grades=grades, origins=origins)


def _merge_draws(proposals: Sequence[tuple[str, TokenTree]], handles: Sequence[Sequence[int]]) -> dict[int, list[Draw]]:
    """The trials at every node, drafter after drafter; children that no record names were chosen."""
    trials: dict[int, list[Draw]] = {}
    for (_, tree), at in zip(proposals, handles, strict=True):
        for node, draws in tree.draws.items():
            trials.setdefault(at[node], []).extend(Draw(node=at[draw.node], q=draw.q) for draw in draws)
        for node in range(1, len(tree.tokens)):
            if tree.parents[node] not in tree.draws:
                trials.setdefault(at[tree.parents[node]], []).append(Draw(node=at[node], q=None))
    return trials
