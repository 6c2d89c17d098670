"""Capture of a PyTorch decoder: `torch.export` of the model without its cache, attention kept as one operator."""

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from flexspec.errors import UsageError
from flexspec.ir.graph import ModelFacts, ModelGraph
from flexspec.ir.module_structure import expected_patterns
from flexspec.ir.ops import ATTENTION

_ATTENTION_NAME = "flexspec"
_IGNORED_ATTENTION_ARGUMENTS = {"position_ids", "use_cache", "is_causal", "output_attentions", "cache_position", "position_embeddings"}


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
    unknown = {name for name, given in extra.items() if given is not None} - _IGNORED_ATTENTION_ARGUMENTS
    if unknown or attention_mask is not None or dropout:
        raise UsageError(
            f"{type(module).__name__} asks for attention with {sorted(unknown) or 'a mask or dropout'}, which is not supported"
        )
    if extra.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise UsageError(f"{type(module).__name__} is not causal: only decoder models can be compiled")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return ATTENTION(q, k, v, float(scale), sliding_window, softcap, s_aux), None


AttentionInterface.register(_ATTENTION_NAME, _attention_function)
AttentionMaskInterface.register(_ATTENTION_NAME, lambda *args, **kwargs: None)


class _LogitsOnly(nn.Module):
    """A decoder as `forward(token_ids, position_ids) -> logits`, without cache."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.options = {"use_cache": False} if isinstance(model, PreTrainedModel) else {}

    def forward(self, token_ids: Tensor, position_ids: Tensor) -> Tensor:
        # Tracing takes this for a fact; a model that never combines the two would have two batch sizes and two lengths.
        assert token_ids.shape == position_ids.shape
        result = self.model(input_ids=token_ids, position_ids=position_ids, **self.options)
        logits = getattr(result, "logits", result)
        if not isinstance(logits, Tensor):
            raise UsageError(f"{type(self.model).__name__} returns {type(logits).__name__}; it must return logits [batch, tokens, vocab]")
        return logits


def capture(module: nn.Module, *, name: str) -> ModelGraph:
    """Trace a decoder into the operator IR, in float32, with symbolic batch and sequence.

    The module given is not changed: attention is switched on a copy that shares its parameters (float32 copies are made
    of parameters of another dtype).

    Args:
        module: a Hugging Face causal language model, or a module with `forward(input_ids, position_ids) -> logits`.
        name: what messages call the model.

    Returns:
        A graph `(token_ids [batch, tokens], position_ids [batch, tokens]) -> logits [batch, tokens, vocab]`.

    Raises:
        UsageError: if the module is not such a decoder or can't be traced.
    """
    parameters = inspect.signature(module.forward).parameters
    if "input_ids" not in parameters or "position_ids" not in parameters:
        raise UsageError(
            f"model {name}: forward() of {type(module).__name__} must take input_ids and position_ids; it takes {list(parameters)}"
        )
    shadow = _float32_copy(module)
    if isinstance(shadow, PreTrainedModel):
        shadow.set_attn_implementation(_ATTENTION_NAME)
    example = torch.zeros((2, 5), dtype=torch.int64), torch.arange(5).repeat(2, 1)
    dynamic = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    try:
        with torch.no_grad():
            exported = torch.export.export(_LogitsOnly(shadow).eval(), example, dynamic_shapes=(dynamic, dynamic), strict=False)
    except UsageError:
        raise
    except (RuntimeError, TypeError, ValueError, AttributeError, torch._dynamo.exc.TorchDynamoException) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"model {name}: {type(module).__name__} could not be traced with symbolic batch and length: {reason}") from error
    for node in exported.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            changed = ", ".join(str(arg) for arg in node.all_input_nodes[:1])
            raise UsageError(
                f"model {name}: {type(module).__name__} changes {changed} in place ({node.target}); write that operation out of place"
            )
    graph_module = _unlift(exported)
    logits = graph_module.graph.output_node().args[0]
    vocab_size = int(logits.meta["val"].shape[-1])  # type: ignore[union-attr]
    config = getattr(module, "config", None)
    num_layers = getattr(config, "num_hidden_layers", None)
    facts = ModelFacts(name=name, num_layers=num_layers, vocab_size=vocab_size, patterns=expected_patterns(module))
    return ModelGraph(module=graph_module, facts=facts)


def _float32_copy(module: nn.Module) -> nn.Module:
    """A copy of the module's structure and config whose float32 parameters are the module's own."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = (
            parameter if parameter.dtype == torch.float32 else nn.Parameter(parameter.detach().float(), requires_grad=False)
        )
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.float() if buffer.is_floating_point() else buffer
    return copy.deepcopy(module, memo)


def _unlift(exported: ExportedProgram) -> fx.GraphModule:
    """Turn the exported program's lifted parameters back into attributes; one attribute for a tied weight."""
    signature = exported.graph_signature
    graph = fx.Graph()
    root: dict[str, Tensor] = {}
    values: dict[fx.Node, Any] = {}
    names = iter(("token_ids", "position_ids"))
    sources = {spec.arg.name: spec for spec in signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and sources[node.name].kind == InputKind.USER_INPUT:
            values[node] = graph.placeholder(next(names))
        elif node.op == "placeholder":
            if not node.users:
                continue
            target = sources[node.name].target
            assert target is not None
            tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
            attribute = target.removeprefix("model.").replace(".", "_")
            while attribute in root:
                attribute += "_"
            root[attribute] = tensor.detach()
            values[node] = graph.get_attr(attribute)
        elif node.op == "output":
            (logits,) = node.args[0]
            graph.output(values[logits])
            continue
        else:
            values[node] = graph.node_copy(node, lambda old: values[old])
        values[node].meta["val"] = node.meta["val"]
    holder = nn.Module()
    for attribute, tensor in root.items():
        holder.register_buffer(attribute, tensor)
    return fx.GraphModule(holder, graph)
