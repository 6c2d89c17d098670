"""Writing a module as an OpenVINO model of the kind that its language-model pipeline runs: with the KV cache as state inside."""

import importlib
import inspect
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from flexspec.bench.peer import PeerUnavailable, last_line
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.pretrained import quiet_transformers
from flexspec.models.shared_copy import shared_copy

# Decoders that rotate queries and keys, and keep nothing but those keys and their values from token to token.
_MODEL_TYPES = ("llama", "qwen2", "qwen3")
# These compute their frequencies anew for every length of the text, which a traced graph can't.
_UNTRACED_ROPE = ("dynamic", "longrope")

_INPUTS = ("input_ids", "attention_mask", "position_ids")


def write_openvino(library: Any, loaded: LoadedModel, folder: Path) -> None:
    """Write the model into `folder`, weights in float32, in which those of both dtypes are exact.

    Args:
        library: the module `openvino`.
        loaded: the model.
        folder: is made.

    Raises:
        PeerUnavailable: if it is of another kind than those that can be converted.
    """
    config: Any = getattr(loaded.module, "config", None)
    _check_convertible(config)
    heads, head_dim = config.num_key_value_heads, config.head_dim
    past = torch.zeros(1, heads, 2, head_dim)  # [batch, heads, tokens, head_dim]
    example = {
        "input_ids": torch.tensor([[0, 0, 0]]),
        "attention_mask": torch.ones(1, 5, dtype=torch.long),
        "position_ids": torch.tensor([[2, 3, 4]]),
        "past": tuple((past, past) for _ in range(config.num_hidden_layers)),
    }
    with quiet_transformers(), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # tracing warns about every choice that it takes for fixed
        try:
            converted = library.convert_model(_WithPast(shared_copy(loaded.module, torch.float32)).eval(), example_input=example)
        except RuntimeError as error:
            raise PeerUnavailable(f"openvino can't convert the model: {last_line(error)}") from None
    _keep_past_inside(library, converted, heads, head_dim)
    folder.mkdir()
    library.save_model(converted, folder / "openvino_model.xml", compress_to_fp16=False)


def _check_convertible(config: Any) -> None:
    kind = getattr(config, "model_type", None)
    if kind not in _MODEL_TYPES:
        raise PeerUnavailable(
            f"only models of the types {', '.join(_MODEL_TYPES)} are converted to openvino, and this one is of type {kind}"
        )
    if config.rope_parameters["rope_type"] in _UNTRACED_ROPE:
        raise PeerUnavailable(f"models with {config.rope_parameters['rope_type']} rope scaling are not converted to openvino")
    if any(layer != "full_attention" for layer in getattr(config, "layer_types", None) or ()):
        raise PeerUnavailable("models with attention to a part of the text are not converted to openvino")


class _WithPast(nn.Module):
    """A decoder whose KV cache comes in and goes out as tensors."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        # What transformers 5.17 calls by the older name is `cache` in later versions.
        names = inspect.signature(decoder.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, past: Sequence[Any]
    ) -> tuple[torch.Tensor, ...]:
        cache = _TracedCache(past)
        keys = torch.arange(attention_mask.shape[1])[None, None, None, :]
        visible = (keys <= position_ids[:, None, :, None]) & (attention_mask[:, None, None, :] > 0)  # [batch, 1, tokens, keys]
        mask = torch.zeros(1).masked_fill(~visible, torch.finfo(torch.float32).min)
        output = self.decoder(
            input_ids=input_ids, attention_mask=mask, position_ids=position_ids, use_cache=True, **{self._cache_argument: cache}
        )
        return (output.logits, *(tensor for layer in cache.layers for tensor in layer))


class _TracedCache:
    """As much of a transformers cache as a forward pass needs."""

    is_compileable = False

    def __init__(self, past: Sequence[Any]) -> None:
        self.layers = list(past)

    def update(self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        past_keys, past_values = self.layers[layer]
        both = torch.cat((past_keys, keys), 2), torch.cat((past_values, values), 2)
        self.layers[layer] = both
        return both

    def get_seq_length(self, layer: int = 0) -> int:
        return int(self.layers[layer][0].shape[2])


def _keep_past_inside(library: Any, model: Any, heads: int, head_dim: int) -> None:
    """Turn the cache's inputs and outputs into state that starts empty, with an input `beam_idx` that reorders its sequences."""
    ops, shape = library.opset13, library.PartialShape
    passes: Any = importlib.import_module("openvino.passes")
    for name, port in zip(_INPUTS, model.inputs, strict=False):
        port.get_tensor().set_names({name})
    model.outputs[0].get_tensor().set_names({"logits"})
    beams = ops.parameter(shape([-1]), np.int32, name="beam_idx")
    beams.output(0).get_tensor().set_names({"beam_idx"})
    first_axis = ops.constant(0, np.int64)
    parameters, results = model.get_parameters()[len(_INPUTS) :], model.get_results()[1:]
    for parameter in parameters:
        parameter.set_partial_shape(shape([-1, heads, -1, head_dim]))
        readers = parameter.output(0).get_target_inputs()
        reordered = ops.gather(parameter, beams, first_axis)
        for reader in readers:
            reader.replace_source_output(reordered.output(0))
    model.add_parameters([beams])
    model.validate_nodes_and_infer_types()
    batch = ops.gather(ops.shape_of(model.inputs[0].get_node(), output_type="i64"), ops.constant([0], np.int64), first_axis)
    empty = ops.broadcast(ops.constant(0.0, np.float32), ops.concat([batch, ops.constant([heads, 0, head_dim], np.int64)], 0))
    manager = passes.Manager()
    manager.register_pass(passes.MakeStateful(list(zip(parameters, results, strict=True))))
    manager.run_passes(model)
    for op in model.get_ordered_ops():
        if op.get_type_name() == "ReadValue":
            op.set_arguments([empty.output(0)])
    model.validate_nodes_and_infer_types()
