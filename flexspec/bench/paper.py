"""Figures that the paper published, to stand beside ours.

Source: Miao et al., "SpecInfer: Accelerating Large Language Model Serving with Tree-based Speculative Inference and
Verification", ASPLOS 2024 (arXiv 2305.09781), Tables 1 to 3: LLaMA-7B drafted by LLaMA-68M, 128 new tokens, float16.
"""

from collections.abc import Mapping
from dataclasses import dataclass

CITATION = "Miao et al. 2024"
MODELS = "LLaMA-7B with LLaMA-68M"
TREE = "⟨1,1,k,1,1,1,1,1⟩"
"""Of Tables 2 and 3."""
NAIVE_WIDTH = 5
"""The k of Table 3."""


@dataclass(frozen=True, kw_only=True)
class PaperFigures:
    """One data set decoded in one way, for k = 1 to 5.

    Attributes:
        hit_rates: Table 1: share of the tokens among the draft model's first k, from 0 to 1.
        tokens_per_step: Table 2: with trees `TREE`.
    """

    hit_rates: tuple[float, ...]
    tokens_per_step: tuple[float, ...]


GREEDY: Mapping[str, PaperFigures] = {
    "Alpaca": PaperFigures(hit_rates=(0.68, 0.77, 0.81, 0.84, 0.85), tokens_per_step=(2.95, 3.07, 3.21, 3.33, 3.43)),
    "CP": PaperFigures(hit_rates=(0.69, 0.79, 0.83, 0.86, 0.87), tokens_per_step=(2.58, 3.24, 3.46, 3.59, 3.69)),
    "WebQA": PaperFigures(hit_rates=(0.62, 0.72, 0.77, 0.80, 0.82), tokens_per_step=(2.27, 2.69, 2.86, 2.98, 3.07)),
    "CIP": PaperFigures(hit_rates=(0.70, 0.81, 0.85, 0.88, 0.89), tokens_per_step=(2.73, 3.40, 3.62, 3.79, 3.91)),
    "PIQA": PaperFigures(hit_rates=(0.63, 0.75, 0.79, 0.83, 0.85), tokens_per_step=(2.18, 2.80, 2.97, 3.10, 3.21)),
}
"""By data set; the large model's likeliest token is taken."""

STOCHASTIC: Mapping[str, PaperFigures] = {
    "Alpaca": PaperFigures(hit_rates=(0.54, 0.81, 0.91, 0.95, 0.97), tokens_per_step=(1.79, 2.11, 2.26, 2.32, 2.38)),
    "CP": PaperFigures(hit_rates=(0.56, 0.82, 0.92, 0.95, 0.97), tokens_per_step=(1.69, 1.99, 2.15, 2.23, 2.28)),
    "WebQA": PaperFigures(hit_rates=(0.52, 0.80, 0.90, 0.94, 0.96), tokens_per_step=(1.64, 1.93, 2.08, 2.15, 2.21)),
    "CIP": PaperFigures(hit_rates=(0.57, 0.84, 0.92, 0.95, 0.97), tokens_per_step=(1.72, 2.05, 2.19, 2.28, 2.29)),
    "PIQA": PaperFigures(hit_rates=(0.55, 0.82, 0.91, 0.95, 0.97), tokens_per_step=(1.67, 1.93, 2.08, 2.15, 2.21)),
}
"""By data set; tokens are drawn."""

NAIVE_TO_MSS: Mapping[str, tuple[float, float]] = {
    "Alpaca": (1.87, 2.38),
    "CP": (1.80, 2.28),
    "WebQA": (1.73, 2.21),
    "CIP": (1.79, 2.29),
    "PIQA": (1.73, 2.21),
}
"""Table 3: tokens a step by data set with naive sampling and with multi-step speculative sampling (MSS), trees `TREE`, k `NAIVE_WIDTH`."""


def figures(temperature: float) -> Mapping[str, PaperFigures]:
    """What is comparable with a run at this temperature: greedy at 0, else stochastic."""
    return STOCHASTIC if temperature > 0 else GREEDY
