"""Capture of a PyTorch decoder: `torch.export` of the model without its cache, attention kept as one operator."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from transformers import PreTrainedModel

from flexspec.errors import FORWARD_ERRORS, UsageError
from flexspec.ir.attention_interface import MaskWindow, switch_attention, taken_windows, windows_of_masks
from flexspec.ir.experts import switch_experts
from flexspec.ir.graph import ModelFacts, ModelGraph, fake, outputs_of
from flexspec.ir.logits import logits_of
from flexspec.ir.mask_rules import NotUnderstood
from flexspec.ir.module_structure import expected_patterns
from flexspec.ir.out_of_place import make_out_of_place
from flexspec.ir.rope_length import fix_rope_length
from flexspec.ir.submodule_outputs import check_names, hidden_state, recorded_outputs
from flexspec.ir.trace_sizes import trace_sizes
from flexspec.ir.traceable import traceable

_STATES = ("linear_attention", "mamba", "recurrent", "conv")
"""In the names of those types of layers of Hugging Face's configs that keep a state."""


class _Decoder(nn.Module):
    """A decoder as `forward(token_ids, position_ids[, features]) -> (logits, *hidden states)`, without cache."""

    def __init__(self, model: nn.Module, hidden_states: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.hidden_states = hidden_states
        self.options = {"use_cache": False} if isinstance(model, PreTrainedModel) else {}
        self.takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.windows: Sequence[MaskWindow | None] = ()

    def forward(self, token_ids: Tensor, position_ids: Tensor, features: Tensor | None = None) -> tuple[Tensor, ...]:
        # Tracing takes this for a fact; a model that never combines the two would have two batch sizes and two lengths.
        assert token_ids.shape == position_ids.shape
        inputs = {"input_ids": token_ids} | ({"position_ids": position_ids} if self.takes_positions else {})
        if features is not None:
            assert features.shape[:2] == token_ids.shape
            inputs["features"] = features
        with recorded_outputs(self.model, self.hidden_states) as outputs, taken_windows(self.windows):
            result = self.model(**inputs, **self.options)
        logits = logits_of(result)
        if not isinstance(logits, Tensor):
            raise UsageError(f"{type(self.model).__name__} returns {type(logits).__name__}; it must return logits [batch, tokens, vocab]")
        return logits, *(hidden_state(name, outputs[name]) for name in self.hidden_states)


def capture(
    module: nn.Module, *, name: str, hidden_states: Sequence[str] = (), feature_size: int = 0, own_dtype: bool = False
) -> ModelGraph:
    """Trace a decoder into the operator IR, in float32, with symbolic batch and sequence.

    The module given is not changed: attention is switched on a copy that shares its parameters (float32 copies are made
    of parameters of another dtype).

    Args:
        module: a Hugging Face causal language model, or a module with `forward(input_ids, position_ids) -> logits`; one that takes no
            `position_ids` may get positions from its masks alone (ALiBi).
        name: what messages call the model.
        hidden_states: submodules by name (`"model.layers.9"`) whose outputs, [batch, tokens, any size] or a tuple that begins so,
            the graph gives besides, in this order.
        feature_size: if not 0, the module's forward also takes `features`, float32 [batch, tokens, feature_size].
        own_dtype: let the graph's parameters be the module's own, whatever their dtype, and touch none of them: those that lie in a
            file take no memory then until they are used. The graph's values are float32 all the same.

    Returns:
        A graph `(token_ids [batch, tokens], position_ids [batch, tokens]) -> logits [batch, tokens, vocab]`; with
        `features` its third input, and with hidden states a tuple of the logits and these.

    Raises:
        UsageError: if the module is not such a decoder, can't be traced, or has no such hidden states.
    """
    wanted = ("input_ids", *(("features",) if feature_size else ()))
    parameters = inspect.signature(module.forward).parameters
    if not parameters.keys() >= set(wanted):
        raise UsageError(
            f"model {name}: forward() of {type(module).__name__} must take {' and '.join(wanted)}; it takes {list(parameters)}"
        )
    _check_kind(module, name)
    check_names(module, hidden_states, model=name)
    shadow = _float32_copy(module, _without_memory if own_dtype else _as_float32)
    switched = switch_attention(shadow)
    switch_experts(shadow, name)
    fix_rope_length(shadow)
    exported = _export(_Decoder(shadow, hidden_states).eval(), feature_size, masks=switched, name=name, kind=type(module).__name__)
    graph_module = _unlift(exported, dict(module.named_parameters(remove_duplicate=False)) if own_dtype else {})
    config = getattr(module, "config", None)
    # Of a model that has an encoder too (BART), `num_hidden_layers` counts the encoder's.
    num_layers = getattr(config, "decoder_layers", None) or getattr(config, "num_hidden_layers", None)
    logits = outputs_of(graph_module.graph)[0]
    patterns = expected_patterns(module if own_dtype else shadow, graph_module.buffers())
    facts = ModelFacts(name=name, num_layers=num_layers, vocab_size=int(fake(logits).shape[-1]), patterns=patterns)
    model = ModelGraph(module=graph_module, facts=facts)
    _check_shapes(model, hidden_states)
    return model


def _check_kind(module: nn.Module, name: str) -> None:
    """Refuse models that are known by what Hugging Face's library says of them to have no KV cache that drafts can be taken back from."""
    kind = type(module).__name__
    types = getattr(getattr(module, "config", None), "layer_types", None) or ()
    if getattr(module, "_is_stateful", False) or any(one in str(kind) for kind in types for one in _STATES):
        raise UsageError(
            f"model {name}: {kind} keeps a state that every token changes (a state space or linear attention), and a state can't be rolled "
            "back when drafted tokens are rejected; what is supported is decoders whose layers are attention over a KV cache"
        )


def _export(decoder: _Decoder, feature_size: int, *, masks: bool, name: str, kind: str) -> ExportedProgram:
    batch, length = trace_sizes(decoder)
    example: tuple[Tensor, ...] = torch.zeros((batch, length), dtype=torch.int64), torch.arange(length).repeat(batch, 1)
    if feature_size:
        example = *example, torch.zeros((batch, length, feature_size))
    dynamic = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}
    try:
        with torch.no_grad(), traceable():
            if masks:
                longest = getattr(getattr(decoder.model, "config", None), "max_position_embeddings", None)
                decoder.windows = windows_of_masks(lambda: decoder(*example), longest)
            exported = torch.export.export(decoder, example, dynamic_shapes=(dynamic,) * len(example), strict=False)
    except UsageError:
        raise
    except NotUnderstood as error:
        raise UsageError(f"model {name}: {error}") from error
    except (*FORWARD_ERRORS, torch._dynamo.exc.TorchDynamoException) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if "Constraints violated" in reason:
            reason = (
                "its code takes one of them for a fixed number, as loops over tokens, len(x) and int(x.shape[1]) do; write x.shape[1] "
                "where that is all; recurrent layers, whose state can't be rolled back, are not supported"
            )
        raise UsageError(f"model {name}: {kind} could not be traced with symbolic batch and length: {reason}") from error
    make_out_of_place(exported.graph)
    for node in exported.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            changed = ", ".join(str(arg) for arg in node.all_input_nodes[:1])
            raise UsageError(f"model {name}: {kind} changes {changed} in place ({node.target}); write that operation out of place")
    return exported


def _check_shapes(model: ModelGraph, names: Sequence[str]) -> None:
    tokens = fake(model.placeholder("token_ids")).shape
    for name, node in zip(names, model.hidden_states, strict=True):
        shape = fake(node).shape
        if len(shape) != 3 or shape[:2] != tokens or not isinstance(shape[2], int) or not fake(node).is_floating_point():
            raise UsageError(
                f"model {model.facts.name}: hidden state {name!r} is {fake(node).dtype} of shape {list(shape)}; it must be floats "
                f"[batch, tokens, size], here [{tokens[0]}, {tokens[1]}, size]"
            )


def _float32_copy(module: nn.Module, converted: Callable[[nn.Parameter], nn.Parameter]) -> nn.Module:
    """A copy of the module's structure and config, with float32 parameters in the place of the module's own."""
    memo: dict[int, Any] = {id(parameter): converted(parameter) for parameter in module.parameters()}
    for buffer in module.buffers():
        memo[id(buffer)] = buffer.float() if buffer.is_floating_point() else buffer
    return copy.deepcopy(module, memo)


def _as_float32(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter itself where it is float32."""
    return parameter if parameter.dtype == torch.float32 else nn.Parameter(parameter.detach().float(), requires_grad=False)


def _without_memory(parameter: nn.Parameter) -> nn.Parameter:
    """One of the same shape; all its elements are the same one."""
    return nn.Parameter(torch.zeros(()).expand(parameter.shape), requires_grad=False)


def _unlift(exported: ExportedProgram, parameters: Mapping[str, Tensor]) -> fx.GraphModule:
    """Turn the exported program's lifted parameters back into attributes, one for a tied weight; those in `parameters` are taken there."""
    signature = exported.graph_signature
    graph = fx.Graph()
    root: dict[str, Tensor] = {}
    values: dict[fx.Node, Any] = {}
    names = iter(("token_ids", "position_ids", "features"))
    sources = {spec.arg.name: spec for spec in signature.input_specs}
    for node in exported.graph.nodes:
        if node.op == "placeholder" and sources[node.name].kind == InputKind.USER_INPUT:
            values[node] = graph.placeholder(next(names))
        elif node.op == "placeholder":
            if not node.users:
                continue
            target = sources[node.name].target
            assert target is not None
            name = target.removeprefix("model.")
            tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
            tensor = parameters.get(name, tensor)
            attribute = name.replace(".", "_")
            while attribute in root:
                attribute += "_"
            root[attribute] = tensor.detach()
            values[node] = graph.get_attr(attribute)
        elif node.op == "output":
            outputs = tuple(values[output] for output in node.args[0])
            graph.output(outputs[0] if len(outputs) == 1 else outputs)
            continue
        else:
            values[node] = graph.node_copy(node, lambda old: values[old])
        values[node].meta["val"] = node.meta["val"]
    holder = nn.Module()
    for attribute, tensor in root.items():
        holder.register_buffer(attribute, tensor)
    return fx.GraphModule(holder, graph)
