"""Draft models on disk: what was trained of them, in a folder; embedding, output matrix and tokenizer are the LLM's."""

import hashlib
import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from flexspec.errors import UsageError
from flexspec.models.head import HeadConfig, SpeculationHead
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.prune import keep_layers, layer_names
from flexspec.models.whole_file import write_text_whole, write_whole

DESCRIPTION = "drafter.json"
_WEIGHTS = "weights.safetensors"
_VERSION = 1
_TOKEN_IDS = "token_ids"
_TOKENS = "tokens"


@dataclass(frozen=True, kw_only=True)
class DraftDescription:
    """What a folder holds.

    Attributes:
        kind: `head` or `ssm`.
        llm: what it was made for; see `llm_facts`.
        head: the shape of a head; None for an SSM.
        layers: of the LLM, which an SSM began as; () for a head.
    """

    kind: str
    llm: Mapping[str, Any]
    head: HeadConfig | None = None
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """A draft model from a folder.

    Attributes:
        loaded: it, its output matrix cut down to `token_ids`.
        token_ids: [draft vocab] ascending, of its logits' columns; None for all.
        states: names of the LLM's submodules whose outputs a head reads; () for an SSM.
    """

    loaded: LoadedModel
    token_ids: Tensor | None
    states: tuple[str, ...]


def is_draft_folder(path: object) -> bool:
    """Whether `path` names a folder with a draft model of this form."""
    return isinstance(path, str | Path) and os.path.isfile(os.path.join(os.path.expanduser(path), DESCRIPTION))


def is_tunable(llm: LoadedModel) -> bool:
    """Whether draft models can be tuned to it: those of transformers, whose parts are known by name."""
    return hasattr(llm.module, "get_input_embeddings")


def llm_facts(llm: LoadedModel) -> dict[str, Any]:
    """What has to be alike in an LLM for a draft model that was made for another one: sizes, and the tokens' names if they are known.

    Raises:
        UsageError: if none can be tuned to it.
    """
    module: Any = llm.module
    if not is_tunable(llm):
        raise UsageError(
            f"draft models are tuned to models of transformers, and {llm.name} is none: give suffix, ngram, prune:K or another model "
            "as drafter"
        )
    vocabulary = llm.tokenizer.get_vocab() if llm.tokenizer is not None else {}
    digest = hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()
    return {
        "vocab_size": llm.vocab_size,
        "hidden_size": int(module.get_input_embeddings().weight.shape[1]),
        "layers": len(layer_names(module)),
        _TOKENS: digest if vocabulary else None,
    }


def save_draft(folder: Path, description: DraftDescription, weights: Mapping[str, Tensor], token_ids: Tensor | None) -> None:
    """Write a draft model in bfloat16; a folder that is there gets the new one.

    Raises:
        UsageError: if it can't be written.
    """
    tensors = {name: value.detach().to(torch.bfloat16).contiguous() for name, value in weights.items()}
    if token_ids is not None:
        tensors[_TOKEN_IDS] = token_ids.to(torch.int32)
    content = {"version": _VERSION, **asdict(description)}
    (folder / DESCRIPTION).unlink(missing_ok=True)  # the folder is one again once both files are there
    write_whole(folder / _WEIGHTS, lambda partial: save_file(tensors, partial))
    write_text_whole(folder / DESCRIPTION, json.dumps(content, indent=2) + "\n")


def load_draft(folder: Path, llm: LoadedModel, *, name: str, whole: bool = False) -> DraftModel:
    """The draft model in a folder, for `llm`, whose embedding and output matrix it shares.

    Args:
        folder: that `save_draft` wrote.
        llm: the LLM.
        name: what messages call the draft model.
        whole: leave its output matrix whole, whatever it was trimmed to.

    Raises:
        UsageError: if it is damaged, or was made for a model of another form or with other tokens.
    """
    description, tensors = _read(folder)
    _check_llm(description, llm, name)
    try:
        token_ids = _token_ids(tensors.pop(_TOKEN_IDS, None), llm.vocab_size)
        token_ids = None if whole else token_ids
        module = _head(description.head, llm, token_ids) if description.head is not None else _ssm(description.layers, llm, token_ids)
        _fill(module, tensors, _shared(module))
    except (AttributeError, RuntimeError, IndexError, TypeError, ValueError) as error:
        raise UsageError(f"draft model {name}: its weights do not fit its description ({error}); make it again") from None
    columns = llm.vocab_size if token_ids is None else len(token_ids)
    loaded = replace(llm, name=name, module=module.eval(), vocab_size=columns)
    return DraftModel(loaded=loaded, token_ids=token_ids, states=tuple(description.head.states) if description.head is not None else ())


def _read(folder: Path) -> tuple[DraftDescription, dict[str, Tensor]]:
    try:
        content: Any = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        version = content.pop("version")
        if version != _VERSION:
            raise UsageError(
                f"draft model {str(folder)!r} is of version {version}, and this flexspec reads version {_VERSION}: make it again"
            )
        head = content.pop("head")
        content["layers"] = tuple(content["layers"])
        content["llm"] = dict(content["llm"])
        description = DraftDescription(**content, head=None if head is None else HeadConfig(**head))
        if (description.kind, bool(description.layers)) != ("ssm" if head is None else "head", head is None):
            raise ValueError(f"kind={description.kind!r} is no head, and no SSM with layers")
        return description, load_file(folder / _WEIGHTS)
    except UsageError:
        raise
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"draft model {str(folder)!r} can't be read ({error}): give a folder that flexspec tune wrote") from None


def _check_llm(description: DraftDescription, llm: LoadedModel, name: str) -> None:
    for fact, value in llm_facts(llm).items():
        wanted = description.llm.get(fact)
        if wanted == value or (fact == _TOKENS and None in (wanted, value)):  # a module is given without a tokenizer
            continue
        shown = ("other tokens", "these") if fact == _TOKENS else (f"{fact}={wanted}", f"{fact}={value}")
        raise UsageError(
            f"draft model {name} was made for a model with {shown[0]}, and {llm.name} has {shown[1]}: give a draft model that was tuned "
            "to this one"
        )


def _token_ids(stored: Tensor | None, vocab_size: int) -> Tensor | None:
    if stored is None:
        return None
    ids = stored.long()
    if ids.dim() != 1 or not len(ids) or ids[0] < 0 or ids[-1] >= vocab_size or (ids[1:] <= ids[:-1]).any():
        raise ValueError(f"token ids that are not ascending numbers below {vocab_size}")
    return ids


def _head(config: HeadConfig, llm: LoadedModel, token_ids: Tensor | None) -> SpeculationHead:
    module: Any = llm.module
    output = module.get_output_embeddings().weight.detach()
    if config.hidden_size != output.shape[1]:
        raise ValueError(f"hidden_size={config.hidden_size}, and the LLM's is {output.shape[1]}")
    return SpeculationHead(
        config, embedding=module.get_input_embeddings().weight.detach(), lm_head=output if token_ids is None else output[token_ids]
    )


def _ssm(layers: tuple[int, ...], llm: LoadedModel, token_ids: Tensor | None) -> nn.Module:
    if list(layers) != sorted(set(layers)) or layers[0] < 0:
        raise ValueError(f"layers {list(layers)} that are not ascending numbers")
    module: Any = keep_layers(llm.module, layers)
    if token_ids is not None:
        output = module.get_output_embeddings().weight.detach()[token_ids]
        trimmed = nn.Linear(output.shape[1], len(output), bias=False)
        trimmed.weight = nn.Parameter(output, requires_grad=False)
        module.set_output_embeddings(trimmed)
    made: nn.Module = module
    return made


def _shared(module: nn.Module) -> set[str]:
    """Names of the module's parameters that are the LLM's: its embedding and its output matrix."""
    if isinstance(module, SpeculationHead):
        return {name for name, parameter in module.named_parameters() if not parameter.requires_grad}
    model: Any = module
    own = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    return {name for name, parameter in module.named_parameters(remove_duplicate=False) if any(parameter is one for one in own)}


def _fill(module: nn.Module, tensors: Mapping[str, Tensor], shared: Collection[str]) -> None:
    """Give the module's parameters stored values, and never write into the LLM's, which it shares."""
    wanted = {name for name, _ in module.named_parameters()} - set(shared)
    if wanted != set(tensors):
        raise ValueError(f"{min(wanted ^ set(tensors))} is {'missing' if wanted - set(tensors) else 'unknown'}")
    for name, value in tensors.items():
        owner_name, _, attribute = name.rpartition(".")
        owner = module.get_submodule(owner_name)
        old = getattr(owner, attribute)
        if old.shape != value.shape:
            raise ValueError(f"{name} is {list(value.shape)} and should be {list(old.shape)}")
        setattr(owner, attribute, nn.Parameter(value.to(old.dtype), requires_grad=False))
