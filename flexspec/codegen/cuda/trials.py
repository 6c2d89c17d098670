"""Trials of drafted tokens by the `residual` kernel, one level of all trees after the other; their chances are fetched in one copy."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.cuda.kernels.probabilities import probabilities, probabilities_reference
from flexspec.codegen.cuda.kernels.residual import residual, residual_reference
from flexspec.codegen.cuda.node_rules import cuts_of, moved, node_rules
from flexspec.codegen.tree_trials import Float64, TrialResults, TriedTrees

_OTHERS = 3
"""Numbers of a visit besides those of its trials."""


class KernelTrials:
    """`TreeTrials`: on a GPU the kernels decide, elsewhere their references."""

    def launch(self, logits: Tensor, trees: TriedTrees) -> Tensor:
        """See `TreeTrials.launch`."""
        rules = moved(node_rules(trees), logits.device)
        of_rows = {name: rules[name] for name in ("temperatures", "vocab_limits")}
        distribution = probabilities if logits.is_cuda else probabilities_reference
        p = distribution(logits, cuts=cuts_of(logits, rules), **of_rows)
        q = _dense(trees, p)
        names = ("rows", "debts", "is_decided", "tokens", "q_rows", "uniforms")
        visits = moved({name: getattr(trees, name) for name in names}, logits.device)
        num_visits, width = trees.tokens.shape
        packed = torch.empty((num_visits, width + _OTHERS), dtype=torch.float64, device=logits.device)
        for start, end in pairwise(trees.level_starts):
            level = {name: tensor[start:end] for name, tensor in visits.items()}
            owed = None
            if start:
                visit, trial = level["debts"] // width, level["debts"] % width
                owed = packed[visit, trial]
            found = (residual if logits.is_cuda else residual_reference)(
                p,
                q,
                level["tokens"],
                level["q_rows"],
                level["uniforms"],
                p_rows=level["rows"],
                owed=owed,
                is_decided=level["is_decided"],
            )
            others = (found.owed, found.accepted, found.bonus)
            torch.cat([found.acceptances, *(other[:, None].double() for other in others)], dim=1, out=packed[start:end])
        return packed

    def read(self, packed: Float64) -> TrialResults:
        """See `TreeTrials.read`."""
        owed, accepted, bonus = packed[:, -_OTHERS:].T
        return TrialResults(acceptances=packed[:, :-_OTHERS], owed=owed, accepted=accepted.astype(np.int32), bonus=bonus.astype(np.int32))


def _dense(trees: TriedTrees, p: Tensor) -> Tensor:
    """[Q, columns of p] float64, what children were drawn from; what is not named has no probability."""
    count, width = len(trees.q_starts) - 1, p.shape[1]
    places = np.repeat(np.arange(count), np.diff(trees.q_starts)) * width + trees.q_ids
    sparse = moved({"places": places, "probs": trees.q_probs}, p.device)
    q = torch.zeros(count * width, dtype=torch.float64, device=p.device)
    return q.index_copy_(0, sparse["places"], sparse["probs"]).view(count, width)
