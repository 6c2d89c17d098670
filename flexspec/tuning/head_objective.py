"""A head in training: rollouts on its own features, several tokens deep."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flexspec.models.head import SpeculationHead
from flexspec.tuning.batches import TextBatch
from flexspec.tuning.objective import Predictions, answer_places
from flexspec.tuning.rollout import rollout


class HeadObjective:
    """As `Objective`.

    Args:
        head: is trained, its embedding and output matrix excepted.
        token_ids: [draft vocab] of the rows of the head's output matrix.
        depths: how deep it is rolled out in training.
    """

    def __init__(self, head: SpeculationHead, *, token_ids: Tensor, depths: int) -> None:
        self.module = head
        self.depths = depths
        self.token_ids = token_ids
        self.lm_head = head.lm_head.weight.detach().to(torch.bfloat16)

    def predict(self, batch: TextBatch, *, depths: int) -> Predictions:
        """As `Objective.predict`: entry j predicts token j + 2, from the LLM's state at j."""
        places = answer_places(batch, first=2)
        rows, tokens = places.unbind(dim=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            steps = rollout(self.module, batch.token_ids[:, 1:-1], batch.states[:, :-2], depth=depths)
        hidden = self.module.norm(steps[:, rows, tokens - 2].float())
        depth = torch.arange(depths)[:, None]
        return Predictions(
            hidden=hidden,
            is_valid=tokens - 2 >= depth,
            target=batch.states[rows, tokens - 1, -hidden.shape[-1] :],
            token_ids=batch.token_ids[rows, tokens],
            places=places,
        )

    def weights(self) -> Mapping[str, Tensor]:
        """As `Objective.weights`: what was trained."""
        return {name: value.detach() for name, value in self.module.named_parameters() if value.requires_grad}
