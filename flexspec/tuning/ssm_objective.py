"""A small transformer in training: at every place of a text it predicts the next token, as the LLM does."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from flexspec.tuning.batches import TextBatch
from flexspec.tuning.objective import Predictions, answer_places


class SsmObjective:
    """As `Objective`; the model sees tokens alone, so that one depth is as good as any.

    Args:
        model: a Hugging Face causal language model of a few layers; what requires gradients is trained.
        token_ids: [draft vocab] of the rows of the output matrix.
    """

    depths = 1

    def __init__(self, model: nn.Module, *, token_ids: Tensor) -> None:
        self.module = model
        hugging_face: Any = model
        self._decoder: nn.Module = hugging_face.get_decoder()
        self.token_ids = token_ids
        self.lm_head: Tensor = hugging_face.get_output_embeddings().weight.detach()[token_ids].to(torch.bfloat16)

    def predict(self, batch: TextBatch, *, depths: int) -> Predictions:
        """As `Objective.predict`."""
        places = answer_places(batch, first=1)
        rows, tokens = places.unbind(dim=1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            normed = self._decoder(input_ids=batch.token_ids[:, :-1], use_cache=False).last_hidden_state
        hidden = normed[rows, tokens - 1].float()
        return Predictions(
            hidden=hidden[None],
            is_valid=torch.ones((1, len(places)), dtype=torch.bool),
            target=batch.states[rows, tokens - 1, -hidden.shape[-1] :],
            token_ids=batch.token_ids[rows, tokens],
            places=places,
        )

    def weights(self) -> Mapping[str, Tensor]:
        """As `Objective.weights`: what was trained."""
        return {name: value.detach() for name, value in self.module.named_parameters() if value.requires_grad}
