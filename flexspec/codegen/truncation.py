"""How requests cut the distribution that a token is drawn from."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from flexspec.codegen.batch import Int32


@dataclass(frozen=True, kw_only=True)
class Truncation:
    """What R trees leave of the distribution at a node: top_k first, of that top_p, of that min_p (see `SamplingParams`).

    Attributes:
        top_ks: [R] 0 cuts nothing.
        top_ps: [R] 1 cuts nothing.
        min_ps: [R] 0 cuts nothing.
    """

    top_ks: Int32
    top_ps: npt.NDArray[np.float64]
    min_ps: npt.NDArray[np.float64]
