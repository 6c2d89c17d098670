"""A LLaMA-shaped model with random weights, captured and compiled like any other, without ever being in the host's memory."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaForCausalLM

from flexspec.codegen.cuda.compile import compile_for_gpu
from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.device_check.sizes import LlamaSize
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.ir.graph import ModelGraph
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from flexspec.passes.tokenwise import prove_tokenwise

_DTYPE = torch.bfloat16
_STD = 0.02
_POSITIONS = 1 << 17
BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class RandomLlama:
    """One such model, whose compiled forms share its weights.

    Args:
        size: its sizes.
        device: where it runs.
    """

    def __init__(self, size: LlamaSize, device: torch.device) -> None:
        self.size = size
        self._device = device
        self._graph = _captured(size)
        self._store = WeightStore()
        self._compiled: dict[tuple[bool, bool], GpuModel] = {}

    def compiled(self, *, is_fused: bool, is_captured: bool) -> GpuModel:
        """The model with point-wise operators fused by Inductor or not, and passes captured as CUDA graphs or launched from the host."""
        model = self._compiled.get((is_fused, is_captured))
        if model is None:
            graph = replace(
                self._graph, module=copy.deepcopy(self._graph.module), notes=list(self._graph.notes), origins=dict(self._graph.origins)
            )
            _name_weights(graph)
            if not self._compiled:
                _fill(graph, self._device)
            model = self._compiled[is_fused, is_captured] = compile_for_gpu(
                graph,
                dtype=_DTYPE,
                max_positions=_POSITIONS,
                buckets=BUCKETS,
                store=self._store,
                device=self._device,
                compile_blocks=is_fused,
                capture=is_captured,
            )
        return model


def _captured(size: LlamaSize) -> ModelGraph:
    """The graph behind the serving pipeline, its weights a single number each. That it is token-wise is known of this architecture."""
    config = LlamaConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.intermediate,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=_POSITIONS,
        tie_word_embeddings=size.is_tied,
    )
    with torch.device("meta"):
        module = LlamaForCausalLM(config)
    module.model.rotary_emb = type(module.model.rotary_emb)(config)  # its frequencies are constants and not weights
    _without_memory(module)
    module.eval()  # type: ignore[no-untyped-call]
    graph = capture(module, name=f"random {size.name}")
    with torch.no_grad(), _CatsWithoutMemory():
        run_passes(graph, (*RECOGNITION, *(one for one in SERVING if one is not prove_tokenwise)))
    return graph


def _without_memory(module: nn.Module) -> None:
    """Make each parameter one number seen everywhere; shared ones stay shared."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(_seen_everywhere(parameter.shape), requires_grad=False)
            setattr(part, name, made[id(parameter)])


def _seen_everywhere(shape: Iterable[int]) -> Tensor:
    return torch.zeros(1).expand(*shape)


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 0 and value.numel() > 1 and not any(value.stride())


class _CatsWithoutMemory(TorchFunctionMode):
    """Weights that a pass stacks stay one number."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.cat and not kwargs and len(args) == 1 and all(map(_is_placeholder, args[0])):
            rows = sum(part.shape[0] for part in args[0])
            return _seen_everywhere((rows, *args[0][0].shape[1:]))
        return func(*args, **(kwargs or {}))


def _name_weights(graph: ModelGraph) -> None:
    """Let weights of copies of a graph be the same ones in a store."""
    for node in graph.graph.find_nodes(op="get_attr"):
        if _is_placeholder(graph.parameter(node)):
            graph.origins[str(node.target)] = ("random", str(node.target))


def _fill(graph: ModelGraph, device: torch.device) -> None:
    """Give every weight numbers of its own, made where the model runs.

    A text goes on with the same token for ever: tied embeddings of a large size outweigh the layers, so that the likeliest token is
    so by far, and rounding, which depends on the size of a pass, doesn't make another text.
    """
    generator = torch.Generator(device).manual_seed(0)
    embeddings = {node.args[0] for node in graph.nodes(torch.ops.aten.embedding.default)}
    for node in graph.graph.find_nodes(op="get_attr"):
        value = graph.parameter(node)
        if _is_placeholder(value):
            made = torch.empty(value.shape, dtype=_DTYPE, device=device)
            if value.dim() == 1:
                made.fill_(1.0)
            else:
                made.normal_(std=1.0 if node in embeddings else _STD, generator=generator)
            delattr(graph.module, str(node.target))
            graph.module.register_buffer(str(node.target), made)
