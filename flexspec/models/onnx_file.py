"""ONNX files, and what the files beside one say about its model."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from transformers import CONFIG_MAPPING, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from flexspec.errors import UsageError
from flexspec.ir.onnx.importer import import_graph
from flexspec.ir.onnx.longest import ImportedGraph
from flexspec.ir.onnx.read import read_onnx
from flexspec.ir.ops import ATTENTION
from flexspec.models.pretrained import load_tokenizer, quiet_transformers
from flexspec.models.shared_copy import shared_copy

SUFFIX = ".onnx"
_CONFIGS = ("generation_config.json", "config.json", "genai_config.json")
"""Files beside a model, in the order in which they are asked."""


@dataclass(frozen=True, kw_only=True)
class OnnxConfig:
    """What is known of a model besides its graph, by the names that Hugging Face's configs have.

    Attributes:
        num_hidden_layers: attentions in the graph.
        vocab_size: logits of a token.
        max_position_embeddings: the most tokens of a sequence, if a file says so or the graph's tables and masks end somewhere.
        eos_token_id: tokens that end a text; None if no file says so.
        bos_token_id: what an empty prompt starts with; likewise.
        limited_by: the kind of rotary embedding that changes in longer texts, if that is why they may not be longer.
    """

    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int | None
    eos_token_id: list[int] | None
    bos_token_id: int | None
    limited_by: str | None


class OnnxDecoder(nn.Module):
    """An imported graph, with its config, as a module like Hugging Face's."""

    def __init__(self, graph: fx.GraphModule, config: OnnxConfig) -> None:
        super().__init__()
        self.graph = graph
        self.config = config

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Logits [batch, length, vocabulary] of token and position ids [batch, length]."""
        # Every value of the graph is float32, whatever its weights are kept in.
        others = {name: one.float() for name, one in self.graph.named_parameters() if one.dtype != torch.float32}
        logits: Tensor = (
            torch.func.functional_call(self.graph, others, (input_ids, position_ids)) if others else self.graph(input_ids, position_ids)
        )
        return logits


def load_onnx(path: Path, dtype: torch.dtype | None) -> tuple[nn.Module, PreTrainedTokenizerBase | None]:
    """The decoder in an ONNX file with floating-point weights in `dtype` (None: as they are), and the tokenizer beside it if there is one.

    Raises:
        UsageError: if the file is damaged, holds no decoder that can be imported, or contradicts the files beside it.
    """
    model, said = read_onnx(path), _said(path)
    positions = _first(path, said, ("max_position_embeddings", "n_positions", "max_seq_len", "context_length"), least=1)
    imported = import_graph(model, path=path, name=str(path), longest=positions)
    decoder = OnnxDecoder(imported.module, _config(path, imported, said))
    return shared_copy(decoder, dtype).eval(), _tokenizer(path.parent)


def _said(path: Path) -> dict[str, Mapping[str, Any]]:
    """What each of the files beside a model says."""
    return {name: content for name in _CONFIGS if (content := _read_json(path.parent / name)) is not None}


def _config(path: Path, imported: ImportedGraph, said: Mapping[str, Mapping[str, Any]]) -> OnnxConfig:
    nodes = imported.module.graph
    attentions = [node.meta["heads"] for node in nodes.nodes if node.target == ATTENTION]
    graph: dict[str, int] = {"num_hidden_layers": len(attentions), "vocab_size": nodes.output_node().meta["vocab_size"]}
    if len(set(attentions)) == 1:
        graph["num_attention_heads"], graph["num_key_value_heads"] = attentions[0]
    for name, content in said.items():
        kind = content.get("model_type")
        # Families have names of their own for these, such as `n_layer`.
        names = CONFIG_MAPPING[kind].attribute_map if isinstance(kind, str) and kind in CONFIG_MAPPING else {}
        for key, own in graph.items():
            for called in (key, names.get(key, key)):
                other = content.get(called)
                if _is_whole(other) and other != own:
                    raise UsageError(
                        f"{path}: its graph has {key} {own}, but {name} beside it says {called} {other}: remove that file, or correct it"
                    )
    return OnnxConfig(
        num_hidden_layers=graph["num_hidden_layers"],
        vocab_size=graph["vocab_size"],
        max_position_embeddings=imported.limit,
        limited_by="length-dependent" if imported.changes else None,
        eos_token_id=_end_tokens(path, said),
        bos_token_id=_first(path, said, ("bos_token_id",)),
    )


def _read_json(path: Path) -> Mapping[str, Any] | None:
    """What a config file says; onnxruntime-genai's has the model's facts inside `model`, and heads in `model.decoder`."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} can't be read as JSON ({error}): repair or remove it") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds {type(content).__name__}, not an object: repair or remove it")
    model = content.get("model")
    if path.name != "genai_config.json" or not isinstance(model, dict):
        return content
    decoder = model.get("decoder")
    return {**(decoder if isinstance(decoder, dict) else {}), **model}


def _first(path: Path, said: Mapping[str, Mapping[str, Any]], keys: Sequence[str], *, least: int = 0) -> int | None:
    """The number that files give under any of `keys`; they must agree, and it must be `least` at the least."""
    found = {f"{name} ({key})": content[key] for name, content in said.items() for key in keys if _is_whole(content.get(key))}
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{place} {value}" for place, value in found.items())
        raise UsageError(f"{path}: the files beside it disagree: {listed}; correct or remove one")
    for place, value in found.items():
        if value < least:
            raise UsageError(f"{path}: {place} beside it is {value}; it must be {least} at the least: correct or remove that file")
    return next(iter(found.values()), None)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _end_tokens(path: Path, said: Mapping[str, Mapping[str, Any]]) -> list[int] | None:
    """The end tokens of the first file that gives some; a later one may give some of these, but not others alone."""
    found: dict[str, list[int]] = {}
    for name, content in said.items():
        given = content.get("eos_token_id")
        tokens = [given] if _is_whole(given) else given
        if isinstance(tokens, list) and tokens and all(_is_whole(token) for token in tokens):
            found[name] = tokens
    first = next(iter(found.values()), None)
    for name, tokens in found.items():
        if first is not None and set(tokens).isdisjoint(first):
            raise UsageError(f"{path}: the files beside it disagree: eos_token_id is {first} in {next(iter(found))} and {tokens} in {name}")
    return first


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    if any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.model", "vocab.json")):
        with quiet_transformers():
            return load_tokenizer(str(folder))
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        return PreTrainedTokenizerFast(tokenizer_file=str(file))  # type: ignore[no-untyped-call]
    except Exception as error:
        if type(error) is not Exception:  # tokenizers raises nothing more special
            raise
        raise UsageError(f"{file} can't be loaded ({error}): repair or remove it") from error
