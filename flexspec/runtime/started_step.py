"""A step between its drafts and its decisions, while the model runs its pass."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch

from flexspec.codegen.batch import Batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.runtime.device_step import DeviceStep, HostStep
from flexspec.runtime.request import Request
from flexspec.runtime.scheduler import PrefillChunk
from flexspec.runtime.token_tree import TokenTree


@runtime_checkable
class StartsPasses(Protocol):
    """A `CompiledModel` whose passes can be under way while others are prepared."""

    def start(self, batch: Batch, kv: KVStorage) -> Any:
        """Begin a pass; its tokens are of other requests than those under way."""
        ...

    def finish(self, started: Any) -> torch.Tensor:
        """The logits of the pass that began first of those under way, as `CompiledModel.forward` gives them."""
        ...

    def drain(self) -> None:
        """Bring all passes under way to their end: nobody wants their logits."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class StartedStep:
    """What was begun, and for whom.

    Attributes:
        drafts: the step's trees, or how they will be known.
        trees: requests that decode, with their trees.
        chunks: of prompts.
        num_tokens: of the pass.
        under_way: the pass: logits, or what the model finishes it by.
        draft_s: seconds of drafting.
        forward_s: seconds of beginning the pass.
    """

    drafts: HostStep | DeviceStep
    trees: Sequence[tuple[Request, TokenTree]]
    chunks: Sequence[PrefillChunk]
    num_tokens: int
    under_way: Any
    draft_s: float
    forward_s: float

    @property
    def requests(self) -> list[Request]:
        """All that have tokens in the pass."""
        return [*(request for request, _ in self.trees), *(chunk.request for chunk in self.chunks)]


class Passes:
    """The passes of a model, of which several may be under way where the model allows it."""

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self._starts = model if isinstance(model, StartsPasses) else None

    def start(self, batch: Batch, kv: KVStorage) -> Any:
        """Begin a pass, or run it if the model does it all at once."""
        return self._model.forward(batch, kv) if self._starts is None else self._starts.start(batch, kv)

    def finish(self, under_way: Any) -> torch.Tensor:
        """The logits of a pass; passes finish in the order in which they began."""
        logits: torch.Tensor = under_way if self._starts is None else self._starts.finish(under_way)
        return logits

    def drain(self) -> None:
        """Bring passes under way to their end for nobody: whoever takes part in them must not be left waiting."""
        if self._starts is not None:
            self._starts.drain()
