"""Writing a LLaMA-architecture module as a GGUF file of a chosen precision, for llama.cpp."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, LlamaFileType, TensorNameMap, get_tensor_name_map, quantize

from flexspec.bench.peer import PeerUnavailable
from flexspec.models.loaded_model import LoadedModel

_TYPES = {
    torch.float32: (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    torch.bfloat16: (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
}


def write_gguf(loaded: LoadedModel, dtype: torch.dtype, path: Path) -> None:
    """Write the model to `path`, matrices in `dtype`, vectors in float32; without vocabulary, since only token ids are exchanged.

    Raises:
        PeerUnavailable: if it is not a LLaMA with plain rotary embedding.
    """
    module: Any = loaded.module
    config: Any = getattr(module, "config", None)
    if getattr(config, "model_type", None) != "llama" or config.rope_parameters["rope_type"] != "default":
        raise PeerUnavailable("only LLaMA models without rope scaling are written as GGUF")
    kind, file_type = _TYPES[dtype]
    writer = GGUFWriter(path, "llama")
    writer.add_file_type(file_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(loaded.vocab_size)
    writer.add_tokenizer_model("none")
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in module.named_parameters():  # tied weights come once, as llama.cpp expects them
        _add(writer, names, name, parameter, kind, heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(
    writer: GGUFWriter, names: TensorNameMap, name: str, parameter: torch.Tensor, kind: GGMLQuantizationType, heads: dict[str, int]
) -> None:
    target = names.get_name(name, try_suffixes=(".weight",))
    if target is None or name.endswith(".bias"):
        raise PeerUnavailable(f"parameter {name} has no place in a GGUF file that llama.cpp reads")
    values = parameter.detach().float().numpy()
    projection = name.split(".")[-2]
    if projection in heads:
        values = _interleaved(values, heads[projection])
    if values.ndim == 1:
        writer.add_tensor(target, values)
    else:
        writer.add_tensor(target, quantize(values, kind), raw_dtype=kind)


def _interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head in the order in which GGUF's LLaMA rotates them: pairs side by side, where Hugging Face keeps halves apart."""
    rows, columns = weight.shape
    halves = weight.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
