"""Attention of Hugging Face's models as one operator each, through their attention interface, with the window that their mask shows.

What a layer says of its window is a hint that some implementations of its attention ignore; what counts is the mask that it is given.
So a model runs once on a few tokens, where each attention's mask is an object that remembers its rule, before it is traced without masks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from flexspec.ir.mask_rules import NotUnderstood, Rule, window_of
from flexspec.ir.ops import ATTENTION, ROUTED_EXPERTS

_NAME = "flexspec"
_PRODUCTS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
_IGNORED_ARGUMENTS = {
    "position_ids",
    "use_cache",
    "is_causal",
    "output_attentions",
    "output_router_logits",
    "cache_position",
    "position_embeddings",
}


class MaskWindow(NamedTuple):
    """What the mask of an attention showed; None: all earlier tokens."""

    size: int | None


class _Trial:
    """Masks made, and the window of each attention in the order they run; None where no mask was given."""

    def __init__(self, longest: int | None) -> None:
        self.longest = longest
        self.masks: list[tuple[Tensor, Rule]] = []
        self.windows: list[MaskWindow | None] = []
        self._known: dict[int, int | None] = {}

    def mask(self, rule: Rule) -> Tensor:
        mask = torch.ones((1, 1, 1, 1), dtype=torch.bool)
        self.masks.append((mask, rule))
        return mask

    def add(self, layer: str, mask: Tensor | None, heads: int) -> None:
        if mask is None:
            self.windows.append(None)
            return
        place = next((place for place, (own, _) in enumerate(self.masks) if own is mask), None)
        if place is None:
            raise NotUnderstood(
                f"{layer} changes its attention mask, and what it then means is not known; what is supported is {_SUPPORTED}"
            )
        if place not in self._known:
            try:
                self._known[place] = window_of(self.masks[place][1], self.longest, heads)
            except NotUnderstood as error:
                raise NotUnderstood(
                    f"{layer} has an attention mask that is neither causal nor a sliding window: {error}; what is supported is {_SUPPORTED}"
                ) from error
        self.windows.append(MaskWindow(self._known[place]))


_SUPPORTED = "causal attention, with a sliding window or without, over the whole text"
_trial: ContextVar[_Trial | None] = ContextVar("trial", default=None)
_windows: ContextVar[Iterator[MaskWindow | None] | None] = ContextVar("windows", default=None)


def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **extra: Any,
) -> tuple[Tensor, None]:
    """Transformers' attention interface, mapped to the dialect; q, k, v arrive as [batch, heads, tokens, head_dim]."""
    trial, windows = _trial.get(), _windows.get()
    unknown = {name for name, given in extra.items() if given is not None} - _IGNORED_ARGUMENTS
    if unknown or dropout or (attention_mask is not None and trial is None):
        raise NotUnderstood(
            f"{type(module).__name__} asks for attention with {sorted(unknown) or 'a mask or dropout'}, which is not supported"
        )
    if extra.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise NotUnderstood(f"{type(module).__name__} is not causal: only decoder models can be compiled")
    if trial is not None:
        trial.add(type(module).__name__, attention_mask, query.shape[1])
    found = None
    if windows is not None and trial is None:
        try:
            found = next(windows)
        except StopIteration:
            raise NotUnderstood(f"{type(module).__name__} runs attention more often at some lengths of the text than at others") from None
    window = sliding_window if found is None else found.size
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return ATTENTION(q, k, v, float(scale), window, softcap, s_aux), None


def _mask_function(*args: Any, mask_function: Rule, **options: Any) -> Tensor | None:
    trial = _trial.get()
    return None if trial is None else trial.mask(mask_function)


AttentionInterface.register(_NAME, _attention_function)
AttentionMaskInterface.register(_NAME, _mask_function)


def switch_attention(shadow: nn.Module) -> bool:
    """Let Hugging Face's attention layers, in a model of theirs or in any other module, call the dialect's attention; whether any may.

    Models of theirs that do not go through their attention interface keep attention written out, to be found in the graph.
    """
    if isinstance(shadow, PreTrainedModel):
        own = "sdpa" if shadow._supports_sdpa else "eager"
        shadow.set_attn_implementation(_NAME if shadow._supports_attention_backend else own)
        return bool(shadow._supports_attention_backend)
    configs = [config for part in shadow.modules() if isinstance(config := getattr(part, "config", None), PreTrainedConfig)]
    for config in configs:
        config._attn_implementation = _NAME
    return bool(configs)


class _WithoutProducts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Products with weights, which may be large, give zeros: masks do not depend on them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _PRODUCTS:
            first, second = args[-2:]
            return first.new_zeros((first.shape[0], second.shape[1]))
        return torch.zeros_like(args[0]) if func == ROUTED_EXPERTS else func(*args, **(kwargs or {}))


def windows_of_masks(run: Callable[[], object], longest: int | None) -> list[MaskWindow | None]:
    """Run a model once, to see the mask of each attention, in the order they run.

    Args:
        run: the model on a few tokens, positions counting from 0.
        longest: tokens that a text of the model may have, if that is known.

    Raises:
        NotUnderstood: if a mask is neither causal nor a sliding window, with what it looks like.
    """
    trial = _Trial(longest)
    token = _trial.set(trial)
    try:
        with torch.no_grad(), _WithoutProducts():  # type: ignore[no-untyped-call]
            run()
    finally:
        _trial.reset(token)
    return trial.windows


@contextmanager
def taken_windows(windows: Sequence[MaskWindow | None]) -> Iterator[None]:
    """Let the attentions of one run of the model have these windows."""
    token = _windows.set(iter(windows))
    try:
        yield
    finally:
        _windows.reset(token)
