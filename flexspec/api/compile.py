"""`flexspec.compile`: models in, a serving runtime out."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from flexspec.api.compile_options import (
    check_tokenizer,
    choose_dtype,
    choose_max_len,
    choose_ssms,
    find_acceptance,
    find_strategy,
    make_plan,
)
from flexspec.api.devices import Placement, find_cache_dtype, find_device
from flexspec.api.draft_models import hidden_states_for, load_tuned
from flexspec.api.drafters import Drafting, check_own_devices, load_ssm, make_drafting
from flexspec.api.engine import make_engine
from flexspec.api.job import Job, join
from flexspec.api.llm import LLM
from flexspec.api.lower import Compilation, LowerOptions, ModelPart, lower
from flexspec.api.memory import available_memory, check_fits, check_weights_fit
from flexspec.api.report import Plan
from flexspec.codegen.weight_store import WeightStore
from flexspec.models.draft_folder import DraftModel
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.parallel import DEFAULT_RANK_TIMEOUT_S
from flexspec.passes.divide import is_divided
from flexspec.runtime.distributed.outcomes import result
from flexspec.runtime.distributed.rank_failure import memory_told
from flexspec.runtime.distributed.replicated_engine import ReplicatedEngine
from flexspec.runtime.engine import Engine
from flexspec.runtime.periodic_log import check_interval
from flexspec.strategy import Strategy
from flexspec.tree_shape import Tree


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
    saved = find_strategy(strategy, model, ssms, dtype=dtype, max_batch=max_batch)
    weights_dtype = choose_dtype(dtype, saved, model, place)
    cache_dtype = find_cache_dtype(kv_cache_dtype, dtype=weights_dtype, device=place)
    ssms = choose_ssms(ssms, saved, model)
    check_tokenizer(tokenizer)
    plan = make_plan(saved, ssms, dtype=weights_dtype, tree=tree, verifier=verifier, max_batch=max_batch, max_len=max_len)
    acceptance = find_acceptance(statistics)
    check_interval(log_every_s)
    job = join(plan.parallel, device=place, rank_timeout_s=rank_timeout_s)
    options = LowerOptions(
        dtype=weights_dtype,
        buckets=plan.buckets,
        store=WeightStore(),
        native=native,
        placement=Placement(device=place, cache_dtype=cache_dtype, allow_references=allow_reference_kernels),
    )
    models = _load(model, ssms, tokenizer, plan, job)
    if job is not None and not job.is_driver:
        return _follower(job, models, plan, options)
    compilation = _lower_llm(models, plan, job, options)
    plan = plan.replaced(max_len=choose_max_len(plan.max_len, models.llm, compiled=compilation.model.max_positions))
    with nullcontext() if job is None else job.agreed():
        drafting = _make_drafting(models, plan, job, options)
        plan = plan.replaced(drafters=drafting.names)
        whole = compilation.model if job is None else job.driven_model(compilation)
        engine = make_engine(whole, models.llm, plan, drafters=drafting.drafters, acceptance=acceptance, log_every_s=log_every_s)
        llm = _assemble(engine, job, models.llm, compilation, drafting, plan, statistics)
    return llm


@dataclass(frozen=True, kw_only=True)
class _Models:
    """What was loaded.

    Attributes:
        llm: the language model.
        ssms: as the user gave them; those that were not tuned to it are loaded when they are compiled.
        tuned: those that were, by their places among `ssms`.
    """

    llm: LoadedModel
    ssms: Sequence[Any]
    tuned: Mapping[int, DraftModel]


def _load(model: Any, ssms: Sequence[Any], tokenizer: Any, plan: Strategy, job: Job | None) -> _Models:
    """The models, whole or as files that ranks take their parts from; what is wrong with them on one rank is raised by all."""
    if job is None:
        check_weights_fit("model", model, available_memory())
    with nullcontext() if job is None else job.everywhere():
        llm = load_model(model, tokenizer=tokenizer, in_parts=is_divided(plan.parallel))
        choose_max_len(plan.max_len, llm)
        tuned = load_tuned(ssms, llm)
        check_own_devices(plan.parallel, ssms, tuned)
    return _Models(llm=llm, ssms=ssms, tuned=tuned)


def _lower_llm(models: _Models, plan: Strategy, job: Job | None, options: LowerOptions) -> Compilation:
    """The language model, or this rank's part of it."""
    with nullcontext() if job is None else memory_told(job.ranks.rank):
        part = ModelPart(plan=plan.parallel) if job is None else job.part()
        return lower(models.llm, hidden_states=hidden_states_for(models.tuned), **part, **options)


def _make_drafting(models: _Models, plan: Strategy, job: Job | None, options: LowerOptions) -> Drafting:
    """The drafters, those on devices of their own as far as their driver has to know them."""
    assert plan.max_len is not None
    return make_drafting(
        models.ssms,
        models.llm,
        tuned=models.tuned,
        tree=plan.tree,
        max_batch=plan.max_batch,
        max_len=plan.max_len,
        remote={} if job is None else job.remote_models(),
        **options,
    )


def _follower(job: Job, models: _Models, plan: Strategy, options: LowerOptions) -> LLM:
    """What a rank that its driver commands has: its part of the model, or a drafter."""
    if job.place.drafter is None:
        compilation = _lower_llm(models, plan, job, options)
    else:
        with memory_told(job.ranks.rank), job.everywhere():
            compilation = lower(_own_draft(models, job.place.drafter), **options)
    worker = job.worker(compilation)
    result(worker.serve())  # until the driver has compiled what it alone has
    engine = ReplicatedEngine(job.ranks, job.topology, engine=None, worker=worker, drivers=job.drivers)
    strategy = plan.replaced(max_len=choose_max_len(plan.max_len, models.llm))
    report = Plan(strategy=strategy, llm=compilation, ssms=(), kv_bytes=0, ssm_kv_bytes=0)
    return LLM(engine, report, drafters=(), tokenizer=models.llm.tokenizer, bos_token_id=models.llm.bos_token_id)


def _own_draft(models: _Models, name: str) -> LoadedModel:
    """The draft model called `name`, which has a device of its own."""
    tuned = [draft.loaded for place, draft in models.tuned.items() if str(models.ssms[place]) == name]
    return tuned[0] if tuned else load_ssm(name, models.llm)


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
