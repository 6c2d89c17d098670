"""New draft models for an LLM, before they are trained."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.errors import UsageError
from flexspec.models.draft_folder import DraftDescription, is_tunable, llm_facts
from flexspec.models.head import HeadConfig, SpeculationHead
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.output_norm import output_norm_name
from flexspec.models.prune import keep_layers, layer_names
from flexspec.tuning.config import DraftModelSettings, Kind
from flexspec.tuning.draft_vocabulary import check_count
from flexspec.tuning.head_objective import HeadObjective
from flexspec.tuning.objective import Objective
from flexspec.tuning.ssm_objective import SsmObjective

_HEADS = ("num_attention_heads", "n_head")
_INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim")
_ROPE_THETA = 10_000.0
_NORM_EPS = 1e-5
_LAYER_SPREAD = 0.02
_JOIN_SPREAD = 0.03


@dataclass(frozen=True, kw_only=True)
class Member:
    """A draft model in training.

    Attributes:
        objective: trains it.
        description: what its folder will say of it.
    """

    objective: Objective
    description: DraftDescription


def state_names(llm: nn.Module, kind: Kind) -> tuple[str, ...]:
    """The LLM's submodules whose outputs training reads: for a head a state of the lower layers, one of the upper ones and the last one."""
    last = output_norm_name(llm)
    if kind == "ssm":
        return (last,)
    names = layer_names(llm)
    return tuple(dict.fromkeys((names[len(names) // 4], names[2 * len(names) // 3], last)))


def check_settings(llm: LoadedModel, settings: DraftModelSettings) -> None:
    """Passes if such a draft model can be made for `llm`.

    Raises:
        UsageError: if not.
    """
    if not is_tunable(llm):
        raise UsageError(
            f"draft models are tuned to models of transformers, and {llm.name} is none: give one, such as a folder with a config.json"
        )
    check_count(settings.vocab_trim, llm.token_id_limit)
    if settings.kind == "ssm":
        spread_layers(llm.module, settings.num_layers)


def check_width(llm: LoadedModel, model: CompiledModel, states: Sequence[str]) -> None:
    """Passes if all hidden states are as wide as the embedding, as draft models take them to be.

    Args:
        llm: the LLM.
        model: it, compiled with `states`.
        states: as `state_names` gives them.

    Raises:
        UsageError: if not.
    """
    module: Any = llm.module
    hidden = int(module.get_input_embeddings().weight.shape[1])
    if model.hidden_size != len(states) * hidden:
        raise UsageError(
            f"model {llm.name} has layers of another width than its embedding of {hidden}, so no draft model can be tuned to it: give "
            "another model"
        )


def new_member(llm: LoadedModel, settings: DraftModelSettings, *, token_ids: Tensor, states: Sequence[str], seed: int) -> Member:
    """A draft model for `llm`, ready to be trained.

    Args:
        llm: in float32.
        settings: what it is.
        token_ids: [draft vocab] the tokens that it drafts.
        states: as `state_names` gives them.
        seed: of new weights.
    """
    facts = llm_facts(llm)
    if settings.kind == "head":
        head = new_head(llm.module, token_ids=token_ids, states=states, seed=seed)
        description = DraftDescription(kind="head", llm=facts, head=head.head_config)
        return Member(objective=HeadObjective(head, token_ids=token_ids, depths=settings.depths), description=description)
    spread = spread_layers(llm.module, settings.num_layers)
    objective = SsmObjective(own_copy(keep_layers(llm.module, spread)), token_ids=token_ids)
    return Member(objective=objective, description=DraftDescription(kind="ssm", llm=facts, layers=spread))


def new_head(llm: nn.Module, *, token_ids: Tensor, states: Sequence[str], seed: int) -> SpeculationHead:
    """A head that begins near handing on the last of the LLM's states, with small logits.

    After 80 steps with SmolLM2 that guessed 30% of held-out tokens; 27% with the LLM's norm before the output matrix, which begins with
    logits far too large, 25% without the handing on, and 20% with the LLM's last layer, whose weights expect other inputs.
    """
    module: Any = llm
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = SpeculationHead(
            head_config(llm, states),
            embedding=module.get_input_embeddings().weight.detach(),
            lm_head=module.get_output_embeddings().weight.detach()[token_ids],
        )
        for parameter in head.layer.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=_LAYER_SPREAD)
        for linear in (head.join, head.encoder.fuse):
            nn.init.normal_(linear.weight, std=_JOIN_SPREAD)
            hidden = linear.weight.shape[0]
            with torch.no_grad():
                linear.weight[:, -hidden:] += torch.eye(hidden)
    return head


def head_config(llm: nn.Module, states: Sequence[str]) -> HeadConfig:
    """The shape of a head for `llm`: its own sizes where its config tells them."""
    config: Any = getattr(llm, "config", None)
    module: Any = llm
    hidden = int(module.get_input_embeddings().weight.shape[1])
    heads = _first(config, _HEADS) or max(hidden // 64, 1)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    head_dim -= head_dim % 2  # rotary positions turn pairs
    rope = getattr(config, "rope_parameters", None) or {}
    return HeadConfig(
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=_first(config, _INTERMEDIATE) or 4 * hidden,
        rope_theta=float(rope.get("rope_theta", _ROPE_THETA)) if isinstance(rope, dict) else _ROPE_THETA,
        norm_eps=float(getattr(config, "rms_norm_eps", _NORM_EPS)),
        states=tuple(states),
    )


def spread_layers(llm: nn.Module, count: int) -> tuple[int, ...]:
    """`count` of the LLM's layers, evenly spread, the first and the last among them.

    Raises:
        UsageError: if the LLM has no more layers than that, or they can't be found.
    """
    total = len(layer_names(llm))
    if total == 1:
        raise UsageError(f"{type(llm).__name__} has one layer, too few for an SSM of some of them: give kind=head")
    if not 1 <= count < total:
        raise UsageError(f"layers={count} is not allowed: {type(llm).__name__} has {total} layers, give a number from 1 to {total - 1}")
    return tuple(round(place * (total - 1) / max(count - 1, 1)) for place in range(count))


def own_copy(model: nn.Module) -> nn.Module:
    """`model` with weights of its own, embedding and output matrix excepted, which stay shared and are not trained."""
    module: Any = model
    shared = {id(module.get_input_embeddings().weight), id(module.get_output_embeddings().weight)}
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            if id(parameter) in shared:
                parameter.requires_grad_(False)
            else:
                setattr(owner, name, nn.Parameter(parameter.detach().clone()))
    copied: nn.Module = module
    return copied


def _first(config: Any, names: tuple[str, ...]) -> int | None:
    return next((int(value) for name in names if isinstance(value := getattr(config, name, None), int)), None)
