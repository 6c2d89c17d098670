"""A drafter of one's own: it proposes what most often followed the last token so far.

The model verifies every proposal, so a drafter can make generation slower, but never wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

import flexspec
from flexspec.runtime.drafters.base import DraftRequest
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.tree_builder import TreeBuilder


class BigramDrafter:
    """Fills the tree with the commonest successors of each token in the request's own text."""

    name = "bigram"

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree]:
        """One tree a request."""
        return [self._propose(request) for request in requests]

    def release(self, request_id: int) -> None:
        """There is nothing to forget: the text is counted anew each time."""

    def _propose(self, request: DraftRequest) -> TokenTree:
        followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        for token, follower in zip(request.tokens, request.tokens[1:], strict=False):
            followers[token][follower] += 1
        builder = TreeBuilder(request.tokens[-1])
        level = [0]  # handles of the nodes that get children; 0 is the root
        for width in request.spec.widths:
            level = [builder.add(node, follower) for node in level for follower, _ in followers[builder.tokens[node]].most_common(width)]
        return builder.build()


def main(model: str = "smollm2-135m") -> tuple[flexspec.Output, flexspec.Output]:
    prompt = "red green blue, red green blue, red green blue, red"
    params = flexspec.SamplingParams(max_tokens=48)
    (plain,) = flexspec.compile(model, ssms=[]).generate(prompt, params)
    (drafted,) = flexspec.compile(model, ssms=[BigramDrafter()], tree=[2, 1, 1, 1]).generate(prompt, params)
    print(f"{prompt}{drafted.text}")
    print(f"{drafted.stats.accepted} of {drafted.stats.drafted} drafted tokens accepted, {drafted.stats.tokens_per_step:.2f} tokens a step")
    print("the same text as without drafts:", drafted.token_ids == plain.token_ids)
    return plain, drafted


if __name__ == "__main__":
    main()
