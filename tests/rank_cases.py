"""What the tests ask of ranks, each by a name and arguments that JSON holds; every rank is asked the same."""

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import flexspec
from flexspec import GenerationInterrupted, SamplingParams
from flexspec.api.job import _joined
from flexspec.errors import UsageError
from flexspec.runtime.distributed.rank_failure import RankFailure
from flexspec.runtime.output import RequestMistake, StepRecord
from flexspec.strategy import Strategy

SIZES = {"max_batch": 8, "max_len": 160, "buckets": (1, 16, 256)}
TREE = [2, 2, 1]
CASES: dict[str, Callable[..., Any]] = {}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


def params_of(mode: str, count: int, max_tokens: int) -> list[SamplingParams]:
    """Greedy, or seeded at temperature 0.9, a seed for each prompt."""
    if mode == "greedy":
        return [SamplingParams(max_tokens=max_tokens)] * count
    return [SamplingParams(max_tokens=max_tokens, temperature=0.9, seed=seed) for seed in range(count)]


def compiled(model: str, ssms: list[str] | None, parallel: dict[str, Any] | None = None, **options: Any) -> flexspec.LLM:
    drafters = () if ssms is None else tuple(ssms)
    tree = options.pop("tree", TREE) if ssms else []
    sizes = SIZES | {name: options.pop(name) for name in list(options) if name in SIZES}
    strategy = Strategy(dtype="float32", drafters=drafters, tree=tree, parallel=parallel or {}, **sizes)
    return flexspec.compile(model, ssms, strategy, **options)


def storages(llm: flexspec.LLM) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's keys and values of the model."""
    engine: Any = llm.engine
    worker = getattr(engine, "_worker", None)
    storage = llm.own_engine.cache.storage if worker is None else next(iter(worker._caches.values()))
    return storage.keys.clone(), storage.values.clone()


def is_driver(llm: flexspec.LLM) -> bool:
    return getattr(llm.engine, "_worker", None) is None


@case
def texts(llm: flexspec.LLM, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """Token ids, greedy and seeded, and how many drafts were accepted."""
    found: dict[str, Any] = {}
    for mode in ("greedy", "seeded"):
        outputs = llm.generate(prompts, params_of(mode, len(prompts), max_tokens))
        found[mode] = [output.token_ids for output in outputs]
        found[f"{mode} drafts"] = [sum(output.stats.accepted for output in outputs), sum(output.stats.drafted for output in outputs)]
    return found


@case
def caches(llm: flexspec.LLM, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Whether this rank's part of the KV cache, after accepted paths, is that of a linear prefill. To be asked first: block 0 is free."""
    records: list[StepRecord] = []
    if is_driver(llm):
        llm.own_engine.observer = records.append
    (output,) = llm.generate(prompt, SamplingParams(max_tokens=max_tokens))
    count = len(prompt) + len(output.token_ids) - 1
    if not is_driver(llm):
        count -= 1 + len(TREE)  # where the last step's tokens belong, other ranks hear with the next pass
    drafted = storages(llm)
    llm.generate([*prompt, *output.token_ids], SamplingParams(max_tokens=1))
    linear = storages(llm)
    if is_driver(llm):
        llm.own_engine.observer = None
    differences = [(one[:, :count] - other[:, :count]).abs().max().item() for one, other in zip(drafted, linear, strict=True)]
    least = min(keys[:, :count].abs().amax(dim=(2, 3)).min().item() for keys in linear)
    moved = sum(list(record.path) != list(range(len(record.path))) for record in records)
    return {"difference": max(differences), "least": least, "moved": moved, "shape": list(linear[0].shape)}


@case
def accepts_everything(llm: flexspec.LLM, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
    """For every step, how deep its tree was, and how much of that was accepted."""
    records: list[StepRecord] = []
    if is_driver(llm):
        llm.own_engine.observer = records.append
    outputs = llm.generate(prompts, SamplingParams(max_tokens=max_tokens))
    depths = [[max(record.tree.depths()), len(record.path) - 1] for record in records]
    return {"token_ids": [output.token_ids for output in outputs], "depths": depths}


@case
def details(llm: flexspec.LLM, prompts: list[list[int]]) -> dict[str, Any]:
    """Log probabilities, several completions, and streams, whole and closed early."""
    params = SamplingParams(max_tokens=6, n=2, temperature=0.8, seed=3, logprobs=2, prompt_logprobs=1)
    outputs = llm.generate(prompts, params)
    found: dict[str, Any] = {
        "ids": [output.token_ids for output in outputs],
        "completions": [output.completion for output in outputs],
        "logprobs": [[one.logprob for one in output.logprobs or ()] for output in outputs],
        "prompt": [[one.logprob for one in output.prompt_logprobs or () if one is not None] for output in outputs],
    }
    chunks = list(llm.stream(prompts[0], SamplingParams(max_tokens=9)))
    found["streamed"] = chunks[-1].output.token_ids if chunks[-1].output is not None else None
    iterator = llm.stream(prompts[0], SamplingParams(max_tokens=40))
    next(iterator)
    iterator.close()
    found["after"] = [output.token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=9))]
    return found


@case
def interrupted(llm: flexspec.LLM, prompts: list[list[int]]) -> dict[str, Any]:
    """Ctrl-C during the fifth step that the first rank emits, and what can be done afterwards."""
    steps: list[StepRecord] = []

    def press(record: StepRecord) -> None:
        steps.append(record)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGINT)

    if is_driver(llm) and os.environ.get("RANK", "0") == "0":
        llm.own_engine.observer = press
    found: dict[str, Any] = {}
    try:
        llm.generate(prompts, SamplingParams(max_tokens=30))
    except GenerationInterrupted as interrupt:
        found["outputs"] = [output.token_ids for output in interrupt.outputs]
        found["reasons"] = sorted({output.finish_reason for output in interrupt.outputs})
    if is_driver(llm):
        llm.own_engine.observer = None
    found["after"] = [output.token_ids for output in llm.generate(prompts, SamplingParams(max_tokens=9))]
    return found


def _failing(tokens: Any, logits: torch.Tensor) -> torch.Tensor:
    if len(tokens) > 12:
        raise ValueError("no more")
    return logits


@case
def mistakes(llm: flexspec.LLM, prompts: list[list[int]]) -> dict[str, Any]:
    """What users do wrong in a call is raised on every rank, and the next call works."""
    found: dict[str, Any] = {}
    plain, failing = SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, logits_processors=(_failing,))
    try:
        llm.generate(prompts, [failing, *[plain] * (len(prompts) - 1)])
    except RequestMistake as mistake:
        found["processor"] = [str(mistake), [output.finish_reason for output in mistake.outputs]]
    try:
        llm.generate([*prompts, [10**6]], plain)
    except UsageError as error:
        found["token"] = str(error)
    try:
        llm.generate(prompts, [plain])
    except UsageError as error:
        found["params"] = str(error)
    try:
        llm.stream([10**6], plain)  # at the call, not at the first chunk
    except UsageError as error:
        found["stream"] = str(error)
    try:
        llm.stream(prompts[0], replace(plain, n=2, temperature=0.9))
    except UsageError as error:
        found["completions"] = str(error)
    llm.stream(prompts[0], plain)  # nobody goes through it
    found["after"] = [output.token_ids for output in llm.generate(prompts, plain)]
    return found


@case
def messages(llm: flexspec.LLM, sizes: list[int]) -> list[int]:
    """Objects of all sizes go there and back."""
    ranks, _ = _joined()
    found = []
    for size in sizes:
        content = bytes(range(256)) * (size // 256) + bytes(size % 256)
        if ranks.rank == 0:
            ranks.send(1, content)
            found.append(len(content) if ranks.receive(1) == content else -1)
        else:
            ranks.send(0, ranks.receive(0, owed=False))
            found.append(size)
    return found


@case
def no_memory(llm: flexspec.LLM, prompts: list[list[int]]) -> str:
    """What every rank hears when the second one's cache does not fit its memory; nothing can be asked afterwards."""
    if os.environ["RANK"] == "1":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), resource.RLIM_INFINITY))
    try:
        llm.generate(prompts, SamplingParams(max_tokens=9))
    except RankFailure as failure:
        return str(failure)
    return "no failure"
