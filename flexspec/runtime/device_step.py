"""How the trees of a step are decided: by the host, which has them, or without it: grown, verified and walked on the device."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch

from flexspec.codegen.batch import Int32
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.device_time import DeviceMoment
from flexspec.codegen.device_trees import GrownRows
from flexspec.codegen.tree_walk import TreeWalker, Walks
from flexspec.runtime.decision import Decision, Failure, Outcome, decide
from flexspec.runtime.device_walk import can_walk, walked_trees, walked_verdict
from flexspec.runtime.drafters.growing_trees import GrowingTrees
from flexspec.runtime.request import Request
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.scheduler import PrefillChunk
from flexspec.runtime.token_tree import TokenTree
from flexspec.runtime.verifiers.base import Verdict

Trees = Sequence[tuple[Request, TokenTree]]


def can_wait(requests: Sequence[Request], model: CompiledModel) -> bool:
    """Whether nothing but walks on the LLM's device decides about the requests, so that the host need not see their trees before."""
    if model.tree_walker is None or not model.completes_batches:
        return False
    return all(can_walk(request) and request.prompt_logprobs is None for request in requests)


class HostStep:
    """A step whose trees the host has.

    Attributes:
        trees: one a request that decodes.
        rows: what of the step's batch the device has to complete, as `BatchBuilder.build` takes it.
    """

    def __init__(self, trees: Sequence[TokenTree]) -> None:
        self.trees = trees
        self.rows: GrownRows | None = None

    def decide(self, trees: Trees, chunks: Sequence[PrefillChunk], logits: torch.Tensor, walker: TreeWalker | None) -> Outcome:
        """As `flexspec.runtime.decision.decide`.

        Args:
            trees: the step's requests and `self.trees`.
            chunks: the prompts in its pass.
            logits: of its output rows.
            walker: of the LLM.
        """
        return decide(trees, chunks, logits, walker)

    def seconds(self, draft_s: float, forward_s: float) -> tuple[float, float]:
        """Seconds of drafting and of the LLM's pass, by what the host waited for each."""
        return draft_s, forward_s


class DeviceStep:
    """A step whose trees grow on the device, which the host waits for once, when all of it is done.

    Until they are known a tree of the same size stands in for each: only the number of its nodes and its root mean anything. Where
    fewer nodes grew than that, the last are padding: they touch nothing, and no walk reaches them.

    Args:
        growing: the trees that grow.
        places: theirs among all trees of the step; the others are roots.
        sizes: how many drafted nodes of each of them are verified.
        roots: the last tokens of all texts of the step, in the order of their trees.
        finish: tells of the growing trees what was verified of them, in their order, once it is given what `GrowingTrees.proposals` takes.

    Attributes:
        trees: as `HostStep` has them, stand-ins.
        rows: likewise.
    """

    def __init__(
        self,
        growing: GrowingTrees,
        *,
        places: Sequence[int],
        sizes: Sequence[int],
        roots: Sequence[int],
        finish: Callable[[Int32], list[TokenTree]],
    ) -> None:
        self._growing = growing
        self._places = places
        self._roots = roots
        self._finish = finish
        self._done: DeviceMoment | None = None
        drafted = [0] * len(roots)
        for place, size in zip(places, sizes, strict=True):
            drafted[place] = size
        self.trees = [TokenTree(tokens=[root] * (size + 1), parents=[-1, *[0] * size]) for root, size in zip(roots, drafted, strict=True)]
        starts = np.cumsum([0, *(size + 1 for size in drafted)])
        targets = np.concatenate([np.arange(start + 1, end) for start, end in pairwise(starts)])
        rows = growing.best_nodes(sizes)
        self.rows: GrownRows | None = GrownRows(rows=rows, targets=torch.from_numpy(targets).to(rows.device, non_blocking=True))

    def decide(self, trees: Trees, chunks: Sequence[PrefillChunk], logits: torch.Tensor, walker: TreeWalker | None) -> Outcome:
        """As `HostStep.decide`."""
        assert walker is not None
        began = perf_counter()
        grown, walks = self._fetch(trees, chunks, logits, walker)
        wait_s = perf_counter() - began
        verified = [TokenTree.root(root) for root in self._roots]
        for place, tree in zip(self._places, self._finish(grown), strict=True):
            verified[place] = tree
        asked = _asked([(request, tree) for (request, _), tree in zip(trees, verified, strict=True)], chunks)
        decisions = [_decided(request, tree, walked_verdict(walks, row)) for row, (request, tree) in enumerate(asked)]
        return Outcome(decisions=decisions, prompt_logprobs=[[] for _ in chunks], wait_s=wait_s)

    def seconds(self, draft_s: float, forward_s: float) -> tuple[float, float]:
        """As `HostStep.seconds`: what the device took, as it still drafted when the host went on."""
        assert self._done is not None, "not decided yet"
        return self._growing.seconds, self._growing.ended.seconds_until(self._done)

    def _fetch(self, trees: Trees, chunks: Sequence[PrefillChunk], logits: torch.Tensor, walker: TreeWalker) -> tuple[Int32, Walks]:
        """Walk all trees, and those of prompts that end, and wait for everything that the device knows."""
        assert self.rows is not None
        walked = walked_trees(_asked(trees, chunks))
        assert int(walked.node_starts[-1]) == len(logits), f"{len(logits)} rows of logits for {walked.node_starts[-1]} nodes"
        tokens, parents = self.rows.tokens_and_parents(len(logits))
        walks = walker.launch(logits, replace(walked, tokens=tokens, parents=parents, max_depth=1 + self._growing.depth))
        grown = self._growing.packed
        everything = torch.cat([grown, walks.flatten()])
        self._done = DeviceMoment(logits.device)
        fetched = everything.cpu().numpy()
        return fetched[: len(grown)], walker.read(fetched[len(grown) :].reshape(walks.shape))


def _asked(trees: Trees, chunks: Sequence[PrefillChunk]) -> list[tuple[Request, TokenTree]]:
    """All that a pass decides: the trees, and for chunks that end their prompts trees of the last token alone."""
    ends = [chunk.request for chunk in chunks if chunk.is_last]
    return [*trees, *((request, TokenTree.root(request.tokens[-1])) for request in ends)]


def _decided(request: Request, tree: TokenTree, verdict: Verdict | None) -> Decision | Failure:
    if verdict is None:
        return Failure(request=request, error=NonFiniteLogitsError("the largest of the logits at a node is not finite"))
    token_ids = [*(tree.tokens[node] for node in verdict.path[1:]), verdict.bonus]
    return Decision(request=request, tree=tree, verdict=verdict, token_ids=token_ids, logprobs=None, verify_s=0.0)
