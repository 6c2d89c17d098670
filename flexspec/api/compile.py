"""`flexspec.compile`: models in, a serving runtime out."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexspec.acceptance import AcceptanceTable, load_acceptance
from flexspec.api.devices import Placement, find_cache_dtype, find_device, find_dtype
from flexspec.api.draft_models import hidden_states_for, load_tuned
from flexspec.api.drafters import SHIPPED_DRAFTERS, Drafting, check_own_devices, load_ssm, make_drafting
from flexspec.api.engine import make_engine
from flexspec.api.job import DEFAULT_RANK_TIMEOUT_S, Job, join
from flexspec.api.llm import LLM
from flexspec.api.lower import Compilation, lower
from flexspec.api.memory import available_memory, check_fits, check_weights_fit
from flexspec.api.ranks_strategy import searched_strategy
from flexspec.api.report import Plan
from flexspec.codegen.weight_store import WeightStore
from flexspec.errors import UsageError
from flexspec.models.draft_folder import DraftModel
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.passes.divide import is_divided
from flexspec.runtime.distributed.outcomes import result
from flexspec.runtime.distributed.ranks import world_size
from flexspec.runtime.distributed.replicated_engine import ReplicatedEngine
from flexspec.runtime.engine import Engine
from flexspec.runtime.periodic_log import check_interval
from flexspec.runtime.verifiers.legality import allows_adaptive, check_pair
from flexspec.runtime.verifiers.registry import AUTO
from flexspec.strategy import Strategy, load_strategy
from flexspec.tree_shape import PLAIN, Tree, TreeLimits, TreeSpec, parse_tree

_DEFAULT_MAX_LEN = 4096
_STATIC_TREE = TreeSpec(widths=(2, 2, 1, 1))
"""Where the verifier does not allow adaptive ones."""


def compile(
    model: str | os.PathLike[str] | nn.Module,
    ssms: Sequence[Any] | None = None,
    strategy: str | os.PathLike[str] | Strategy = "auto",
    *,
    tokenizer: PreTrainedTokenizerBase | str | None = None,
    dtype: torch.dtype | str | None = None,
    device: str | None = None,
    kv_cache_dtype: str = "auto",
    allow_reference_kernels: bool = False,
    tree: Sequence[int] | Mapping[str, int] | Tree | str | None = None,
    verifier: str | None = None,
    max_batch: int | None = None,
    max_len: int | None = None,
    native: bool = True,
    statistics: str | os.PathLike[str] | None = None,
    log_every_s: float | None = 10.0,
    rank_timeout_s: float = DEFAULT_RANK_TIMEOUT_S,
) -> LLM:
    """Compile a language model and its drafters into one serving runtime.

    Args:
        model: `"smollm2-135m"`, a Hugging Face folder or hub name, a GGUF or ONNX file, or a module, which is not changed.
        ssms: drafters: model-free ones by name (`"suffix"`, `"suffix:history"`, `"ngram"`), `"prune:K"` (the model's own first K
            layers), models as above, folders that `flexspec tune` wrote, draft models that come with flexspec
            (`"smollm2-135m:head"`), or objects with the methods of `flexspec.runtime.drafters.base.Drafter`; [] is none. None is the
            model's default (`smollm2-135m`: `["suffix", "smollm2-135m:head"]`; no other has one).
        strategy: `"auto"`, a `Strategy`, or the path of a saved one; the arguments below override what it says. In one of several ranks
            `"auto"` is what `flexspec search` finds for as many devices like this machine's, once `flexspec calibrate` measured it.
        tokenizer: used instead of the model's own; modules have none of their own and then take token ids only.
        dtype: `float32` or `bfloat16`, on a GPU `float16` too; None is bfloat16 for pretrained weights and a module's own otherwise.
        device: `"cpu"`, or `"cuda"`: a GPU, by Triton kernels and CUDA graphs.
        kv_cache_dtype: `"auto"` is `dtype`; `"fp8"`, on GPUs that have them, 8-bit floats (e4m3): half the memory, and other numbers,
            to which speculation is as true as to any.
        allow_reference_kernels: on a GPU, run the kernels' references where a model has heads that no kernel is made for, slowly and with
            a warning; otherwise such a model is refused.
        tree: `"auto"`: shaped anew at every step by past acceptance and by what a pass costs; limits of such trees, for example
            `{"depth": 8, "branch": 2, "budget": 16}`; or the widths of a static one, for example [2, 2, 1]. None is `"auto"` where the
            verifier allows it.
        verifier: `auto` (greedy at temperature 0, coupled otherwise), or the name of one.
        max_batch: most requests that run at once, 8 by default; more queue.
        max_len: most tokens of a request, prompt included; None is what the model's positions allow, or 4096.
        native: False keeps to PyTorch operators where native kernels could be built.
        statistics: a file with what earlier runs learned of the drafters' acceptance, loaded if it exists; `LLM.save_statistics`
            writes it, in a folder that exists. Adaptive trees go by it from the first step on.
        log_every_s: seconds of work after which the logger `flexspec` is told, at level INFO, how it went; None for never.
        rank_timeout_s: with a strategy for several devices, seconds of silence after which a rank counts as hanging, and the job ends.
            Every rank has to be started (`torchrun`), and to make the same calls; all of them return the same outputs.

    Raises:
        UsageError: a ValueError that names what is wrong, what is allowed and the fix.
    """
    place = find_device(device)
    saved = _read_strategy(strategy)
    if saved is None and (ranks := world_size()) > 1:
        saved = searched_strategy(
            model, ssms, ranks=ranks, dtype=None if dtype is None else str(dtype).removeprefix("torch."), max_batch=max_batch
        )
    chosen_dtype = _dtype(dtype if dtype is not None or saved is None else saved.dtype, model, place)
    cache_dtype = find_cache_dtype(kv_cache_dtype, dtype=chosen_dtype, device=place)
    placement = Placement(device=place, cache_dtype=cache_dtype, allow_references=allow_reference_kernels)
    ssms = _ssms(ssms, saved, model)
    if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike | PreTrainedTokenizerBase):
        raise UsageError(f"tokenizer={tokenizer!r} is not allowed: give a transformers tokenizer, or the name or folder of one")
    spec = _tree(tree, saved, ssms, verifier)
    plan = (saved or Strategy(dtype=str(chosen_dtype).removeprefix("torch."))).replaced(
        dtype=str(chosen_dtype).removeprefix("torch."), tree=spec, verifier=verifier, max_batch=max_batch, max_len=max_len
    )
    check_pair(plan.verifier, plan.tree)
    acceptance = _acceptance(statistics)
    check_interval(log_every_s)
    job = join(plan.parallel, device=place, rank_timeout_s=rank_timeout_s)
    if job is None:
        check_weights_fit("model", model, available_memory())
    with nullcontext() if job is None else job.everywhere():
        loaded = load_model(model, tokenizer=tokenizer, in_parts=is_divided(plan.parallel))
        asked, length = plan.max_len, _max_len(plan.max_len, loaded)
        tuned = load_tuned(ssms, loaded)
        check_own_devices(plan.parallel, ssms, tuned)
    plan = plan.replaced(max_len=length)
    options: dict[str, Any] = {
        "dtype": chosen_dtype,
        "buckets": plan.buckets,
        "store": WeightStore(),
        "native": native,
        "placement": placement,
    }
    if job is not None and not job.is_driver:
        return _follower(job, loaded, plan, ssms, tuned, options)
    with nullcontext() if job is None else job.ranks.memory():
        part = {"plan": plan.parallel} if job is None else job.part
        compilation = lower(loaded, hidden_states=hidden_states_for(tuned), **part, **options)
    if asked is None and compilation.model.max_positions is not None:
        # Masks may allow fewer positions than the config says.
        length = min(length, compilation.model.max_positions)
        plan = plan.replaced(max_len=length)
    with nullcontext() if job is None else job.agreed():
        drafting = make_drafting(
            ssms,
            loaded,
            tuned=tuned,
            tree=spec,
            max_batch=plan.max_batch,
            max_len=length,
            remote={} if job is None else job.remote_models(),
            **options,
        )
        plan = plan.replaced(drafters=drafting.names)
        whole = compilation.model if job is None else job.driven_model(compilation)
        engine = make_engine(whole, loaded, plan, drafters=drafting.drafters, acceptance=acceptance, log_every_s=log_every_s)
        llm = _assemble(engine, job, loaded, compilation, drafting, plan, statistics)
    return llm


def _follower(
    job: Job, loaded: LoadedModel, strategy: Strategy, ssms: Sequence[Any], tuned: Mapping[int, DraftModel], options: Mapping[str, Any]
) -> LLM:
    """What a rank that its driver commands has: its part of the model, or a drafter."""
    with job.ranks.memory():
        if job.place.drafter is None:
            compilation = lower(loaded, hidden_states=hidden_states_for(tuned), **job.part, **options)
        else:
            name = job.place.drafter
            drafts = [draft.loaded for place, draft in tuned.items() if str(ssms[place]) == name]
            with job.everywhere():
                compilation = lower(drafts[0] if drafts else load_ssm(name, loaded), **options)
    worker = job.worker(compilation)
    result(worker.serve())  # until the driver has compiled what it alone has
    engine = ReplicatedEngine(job.ranks, job.topology, engine=None, worker=worker, drivers=job.drivers)
    plan = Plan(strategy=strategy, llm=compilation, ssms=(), kv_bytes=0, ssm_kv_bytes=0)
    return LLM(engine, plan, drafters=(), tokenizer=loaded.tokenizer, bos_token_id=loaded.bos_token_id)


def _assemble(
    engine: Engine, job: Job | None, loaded: LoadedModel, compilation: Compilation, drafting: Drafting, strategy: Strategy, statistics: Any
) -> LLM:
    if engine.cache.storage.shape.device.type == "cpu":
        # The system gives the caches their memory only when it is written, so sizes can be judged after the fact.
        needs = {"KV cache of the model": engine.cache.storage.num_bytes, "KV caches of the ssms": drafting.num_bytes}
        check_fits(needs, available_memory())
    plan = Plan(
        strategy=strategy,
        llm=compilation,
        ssms=drafting.compilations,
        kv_bytes=engine.cache.storage.num_bytes,
        ssm_kv_bytes=drafting.num_bytes,
    )
    replicated = None if job is None else ReplicatedEngine(job.ranks, job.topology, engine=engine, worker=None, drivers=job.drivers)
    return LLM(
        replicated or engine,
        plan,
        drafters=drafting.drafters,
        tokenizer=loaded.tokenizer,
        bos_token_id=loaded.bos_token_id,
        statistics_file=statistics,
    )


def _acceptance(statistics: Any) -> AcceptanceTable:
    if statistics is None:
        return AcceptanceTable()
    if not isinstance(statistics, str | os.PathLike) or not os.fspath(statistics) or "\0" in os.fspath(statistics):
        raise UsageError(f"statistics={statistics!r} is not allowed: give the path of a file, which need not exist yet")
    if os.path.lexists(statistics):
        return load_acceptance(statistics)
    folder = os.path.dirname(os.fspath(statistics)) or os.curdir
    if not os.path.isdir(folder):
        raise UsageError(
            f"statistics={os.fspath(statistics)!r} can't be written: there is no folder {folder!r}; make it, or give another file"
        )
    return AcceptanceTable()


def _read_strategy(strategy: Any) -> Strategy | None:
    if isinstance(strategy, Strategy):
        return strategy
    if strategy == "auto":
        return None
    if isinstance(strategy, str | os.PathLike):
        return load_strategy(os.fspath(strategy))
    raise UsageError(f"strategy={strategy!r} is not allowed: give 'auto', a Strategy, or the path of a saved one")


def _ssms(ssms: Any, saved: Strategy | None, model: Any) -> Sequence[Any]:
    """The drafters asked for: those given, else the strategy's, else those that ship for the model."""
    if ssms is None and saved is not None:
        return saved.drafters
    if ssms is None:
        return SHIPPED_DRAFTERS.get(model, ()) if isinstance(model, str) else ()
    if isinstance(ssms, str | os.PathLike) or not isinstance(ssms, Sequence):
        example = str(ssms) if isinstance(ssms, str | os.PathLike) else "ngram"
        raise UsageError(f"ssms={_brief(ssms)} is not allowed: give a list, for example [{example!r}]")
    return ssms


def _brief(value: Any) -> str:
    """`value` on one line: modules print themselves on many."""
    return type(value).__name__ if isinstance(value, nn.Module) else repr(value)


def _tree(tree: Any, saved: Strategy | None, ssms: Sequence[Any], verifier: str | None) -> Tree:
    if tree is not None:
        spec = parse_tree(tree)
        if spec.widths and not ssms and tree != "auto":
            raise UsageError(f"tree={tree!r} needs a drafter to fill it: give ssms, for example ['ngram'], or leave out tree")
    elif saved is not None and saved.tree.depth:
        spec = saved.tree
    else:
        spec = TreeLimits() if allows_adaptive(verifier or (saved.verifier if saved is not None else AUTO)) else _STATIC_TREE
    return spec if ssms else PLAIN


def _dtype(dtype: torch.dtype | str | None, model: Any, device: torch.device) -> torch.dtype:
    if dtype is None:
        own = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32) if isinstance(model, nn.Module) else None
        dtype = own or torch.bfloat16
    return find_dtype(str(dtype).removeprefix("torch."), device)


def _max_len(max_len: int | None, loaded: LoadedModel) -> int:
    limit = loaded.max_positions
    if max_len is None:
        return limit or _DEFAULT_MAX_LEN
    if limit is not None and max_len > limit:
        why = f" without its {loaded.limited_by} rotary embedding changing, which is not supported" if loaded.limited_by else ""
        raise UsageError(f"max_len={max_len} is not allowed: model {loaded.name} has {limit} positions{why}; give at most that")
    return max_len
