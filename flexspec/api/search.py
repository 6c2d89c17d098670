"""`flexspec.search`: how a model and its drafters are best run on given hardware."""

import copy
import json
import os
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import LlamaConfig, PreTrainedConfig

from flexspec.acceptance import AcceptanceTable, load_acceptance
from flexspec.api.drafters import SHIPPED_DRAFTERS
from flexspec.errors import UsageError, shown
from flexspec.models.draft_folder import is_draft_folder
from flexspec.models.load import load_outline
from flexspec.models.onnx_file import OnnxDecoder
from flexspec.models.pretrained import ALLOWED_MODELS
from flexspec.models.prune import PRUNE, check_prune, parse_prune, prune_layers
from flexspec.models.shipped import shipped_folder, shipped_names
from flexspec.passes.search.draft_description import read_draft_description
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.hardware import Hardware, load_hardware
from flexspec.passes.search.records import ModelRecord, model_record
from flexspec.passes.search.result import SearchResult
from flexspec.passes.search.run import search_strategy
from flexspec.passes.search.space import AUTO, LATENCY, Workload
from flexspec.passes.search.times import OperatorTimes
from flexspec.runtime.drafters.registry import DRAFTERS

_MOST_RANKED = 1000


def search(
    model: str | os.PathLike[str] | PreTrainedConfig,
    ssms: Sequence[str | os.PathLike[str]] | None = None,
    hardware: str | os.PathLike[str] | Hardware = "local",
    *,
    objective: str = LATENCY,
    batch: int = 1,
    context: int = 512,
    new_tokens: int = 128,
    max_latency_ms: float | None = None,
    acceptance: str | os.PathLike[str] | AcceptanceTable | None = None,
    dtype: str | None = None,
    kv_cache_dtype: str = AUTO,
    max_tree: int = 64,
    top: int = 2,
) -> SearchResult:
    """Choose replicas, pipeline stages, tensor parallelism, drafters, their places and the tree size; nothing is run.

    Args:
        model: `"smollm2-135m"`, a folder with a config.json, a Hugging Face name, a GGUF or ONNX file, or a configuration.
        ssms: drafters that may be used, as `flexspec.compile` takes them by name; [] is none. None is the model's default.
        hardware: a preset, `"local"` for this machine once `flexspec calibrate` has measured it, the path of a JSON file, or a `Hardware`.
        objective: `latency`, the least time per token of a request, or `throughput`, the most tokens a second of all requests.
        batch: requests at once; for `throughput` the most, and fewer are tried.
        context: tokens of a prompt.
        new_tokens: of an answer.
        max_latency_ms: most milliseconds per token of a request.
        acceptance: what is known of the drafters, as `LLM.save_statistics` writes it; None is what is assumed of unknown drafters.
        dtype: of the weights; None is bfloat16.
        kv_cache_dtype: `"auto"` is `dtype`; `"fp8"` is priced if it is given, and never chosen, since it changes what a model computes.
        max_tree: most drafted tokens of a tree.
        top: how many of the best strategies to rank.

    Returns:
        The result; its `strategy` is what `flexspec.compile` takes.

    Raises:
        UsageError: if something is unknown or not allowed, or no strategy fits the hardware.
    """
    workload = Workload(
        objective=objective,
        batch=batch,
        context=context,
        new_tokens=new_tokens,
        max_latency_ms=max_latency_ms,
        max_tree=max_tree,
        dtype=dtype or "bfloat16",
        kv_cache_dtype=kv_cache_dtype,
    )
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= _MOST_RANKED:
        raise UsageError(f"top={top!r} is not allowed: give a whole number from 1 to {_MOST_RANKED}")
    devices = hardware if isinstance(hardware, Hardware) else load_hardware(os.fspath(hardware))
    OperatorTimes(devices, workload.dtype, kv_cache_dtype=kv_cache_dtype)  # what it lacks is refused before models are read
    table = (
        acceptance if isinstance(acceptance, AcceptanceTable) else AcceptanceTable() if acceptance is None else load_acceptance(acceptance)
    )
    started = time.perf_counter()
    if not isinstance(model, str | os.PathLike | PreTrainedConfig):
        fix = "give its configuration (module.config)" if isinstance(model, nn.Module) else f"{ALLOWED_MODELS}, or a configuration"
        raise UsageError(f"model {shown(model)} is not allowed in a search: {fix}")
    source = model if isinstance(model, PreTrainedConfig) else load_outline(model)
    name = type(model).__name__ if isinstance(model, PreTrainedConfig) else os.fspath(model)
    drafters = _drafters(model, ssms, source, name)
    record = _record(source, name)
    capture_seconds = time.perf_counter() - started
    return search_strategy(record, drafters, devices, workload, table, top=top, capture_seconds=capture_seconds)


def _record(source: PreTrainedConfig | OnnxDecoder, name: str) -> ModelRecord:
    if isinstance(source, OnnxDecoder):
        return model_record(source, name=name)
    form: Any = type(source)
    return _record_of(form, source.to_json_string(use_diff=False), name)


@lru_cache(maxsize=32)
def _record_of(form: Any, text: str, name: str) -> ModelRecord:
    """Capturing takes most of a search's time, and people search for one model again and again."""
    return model_record(form.from_dict(json.loads(text)), name=name)


def _drafters(model: Any, ssms: Any, source: PreTrainedConfig | OnnxDecoder, llm: str) -> list[DrafterRecord]:
    if ssms is None:
        ssms = SHIPPED_DRAFTERS.get(model, ()) if isinstance(model, str) else ()
    if isinstance(ssms, str | os.PathLike) or not isinstance(ssms, Sequence):
        raise UsageError(f"ssms={shown(ssms)} is not allowed: give a list, for example ['ngram']")
    wrong = next((ssm for ssm in ssms if not isinstance(ssm, str | os.PathLike)), None)
    if wrong is not None:
        raise UsageError(f"ssm {shown(wrong)} is a {type(wrong).__name__}: give the name of a drafter, or a model's folder or name")
    names = [os.fspath(ssm) for ssm in ssms]
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise UsageError(f"ssm {twice!r} is given twice: give each drafter once")
    return [_drafter(name, source, llm) for name in names]


def _drafter(name: str, source: PreTrainedConfig | OnnxDecoder, llm: str) -> DrafterRecord:
    if name in DRAFTERS.names():
        return DrafterRecord(name=name)
    layers = parse_prune(name)
    if layers is not None:
        check_prune(layers, (source.config if isinstance(source, OnnxDecoder) else source).num_hidden_layers, llm)
        kept: Any = prune_layers(source, layers) if isinstance(source, OnnxDecoder) else _with(source, layers=range(layers))
        return DrafterRecord(name=name, model=_record(kept, name), shares_embedding=True, shares_head=True)
    folder = Path(name).expanduser() if is_draft_folder(name) else shipped_folder(name)
    if folder is not None:
        if isinstance(source, OnnxDecoder):
            raise UsageError(f"ssm {name!r} was tuned to a PyTorch model, and {llm} is an ONNX file: give another drafter, or that model")
        return _tuned(name, folder, source, llm)
    try:
        return DrafterRecord(name=name, model=_record(load_outline(name), name))
    except UsageError as error:
        if os.path.exists(name):
            raise
        known = ", ".join([*DRAFTERS.names(), f"{PRUNE}K", *shipped_names()])
        raise UsageError(f"ssm {name!r} is neither a drafter ({known}) nor a model: {error}") from None


def _tuned(name: str, folder: Path, config: PreTrainedConfig, llm: str) -> DrafterRecord:
    """A draft model that was tuned to the large one: its layers, and as many rows of the output matrix as it drafts from."""
    description = read_draft_description(folder, name)
    hidden, vocabulary = config.hidden_size, config.vocab_size
    if (description.hidden, description.vocabulary) != (hidden, vocabulary):
        raise UsageError(
            f"ssm {name!r} was made for a model of hidden size {description.hidden} with {description.vocabulary} tokens, and "
            f"{llm} has {hidden} and {vocabulary}: give one that was made for it"
        )
    rows = _draft_rows(folder, name) or vocabulary
    if description.head is None:
        draft = _record(_with(config, layers=description.layers, vocabulary=rows), name)
        return DrafterRecord(name=name, model=draft, shares_embedding=True, shares_head=rows == vocabulary)
    head = description.head
    alike = LlamaConfig(
        hidden_size=head.hidden_size,
        intermediate_size=head.intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=head.num_heads,
        num_key_value_heads=head.num_kv_heads,
        head_dim=head.head_dim,
        vocab_size=rows,
        max_position_embeddings=getattr(config, "max_position_embeddings", 4096),
    )
    return DrafterRecord(
        name=name,
        model=_record(alike, name),
        linears=((head.states * hidden, hidden), (2 * hidden, hidden)),  # fusing the states; joining token and feature
        shares_embedding=True,
        shares_head=rows == vocabulary,
        reads_states=True,
    )


def _draft_rows(folder: Path, name: str) -> int | None:
    """Tokens that a draft model drafts from; None for all."""
    try:
        with safe_open(folder / "weights.safetensors", framework="pt") as weights:
            return int(weights.get_slice("token_ids").get_shape()[0]) if "token_ids" in weights.keys() else None
    except (OSError, SafetensorError) as error:
        raise UsageError(f"draft model {name}: its weights can't be read ({error}); make it again") from None


def _with(config: PreTrainedConfig, *, layers: Sequence[int], vocabulary: int | None = None) -> PreTrainedConfig:
    """A configuration with some of the layers, and another vocabulary."""
    changed = copy.deepcopy(config)
    changed.num_hidden_layers = len(layers)
    types = getattr(config, "layer_types", None)
    if types is not None:
        changed.layer_types = [types[layer] for layer in layers]
    if vocabulary is not None:
        changed.vocab_size = vocabulary
    return changed
