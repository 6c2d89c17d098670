"""A whole benchmark: compile, find the peers, encode the prompts, run, report."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from flexspec.api.draft_models import load_if_tuned
from flexspec.api.drafters import load_ssm
from flexspec.api.llm import LLM
from flexspec.bench.config import BenchConfig
from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.hot_path import slow_targets
from flexspec.bench.interleave import Say, interleave, warm_up
from flexspec.bench.machine import describe_machine, describe_versions
from flexspec.bench.measurement import System
from flexspec.bench.peer import PeerTask
from flexspec.bench.peers import make_peers, peer_packages
from flexspec.bench.prompt_selection import PromptSelection, check_prompts, select_prompts
from flexspec.bench.prompt_text import PromptText
from flexspec.bench.recording import record_plain
from flexspec.bench.report import by_category, make_ratios, make_rows, report_drafts
from flexspec.bench.result import BenchResult, missing_batches
from flexspec.bench.systems import CompiledDrafters, compile_drafters, make_systems
from flexspec.errors import UsageError
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.strategy import tree_as_json


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """A whole benchmark.

    Attributes:
        config: what was asked for.
        llm: the compiled model; what its drafters learned is the main system's.
        results: one a batch size, as far as it got; peers are only in the one of batch size 1.
    """

    config: BenchConfig
    llm: LLM
    results: Sequence[BenchResult]

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended it early."""
        return bool(missing_batches(self.results)) or any(result.interrupted for result in self.results)


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What all parts of a benchmark, one a batch size, have in common."""

    config: BenchConfig
    compiled: CompiledDrafters
    ours: Sequence[FlexspecSystem]
    peers: Sequence[System]
    left_out: dict[str, str]
    say: Say


def run_bench(config: BenchConfig, texts: Sequence[PromptText], say: Say, *, warm_up_texts: Sequence[PromptText] = ()) -> BenchRun:
    """Measure flexspec, plain and speculative, and its peers on the same token ids, interleaved prompt by prompt.

    Ctrl-C ends it early; what was measured by then is the result.

    Args:
        config: what is measured.
        texts: the prompts, in the order in which they run.
        say: is told what happens.
        warm_up_texts: prompts to warm up with; without any that fit, those that are measured.

    Raises:
        UsageError: if an option is not allowed, no prompt fits, or a model can't be measured as it was compiled.
        KeyboardInterrupt: on Ctrl-C before anything was measured.
    """
    config.check()
    check_prompts(texts, config.batches)
    say(f"compiling {config.model}")
    compiled = compile_drafters(config)
    parts = _select(config, compiled.llm, texts, warm_up_texts)
    dtype: torch.dtype = getattr(torch, compiled.llm.plan.strategy.dtype)
    loaded = load_model(config.model, dtype=dtype)
    ours, plain = make_systems(config, compiled, loaded)
    if compiled.synthetic is not None:
        for part in parts:
            record_plain(plain, compiled.synthetic, [*part.warm_up, *part.groups], config.settings, say)
    with tempfile.TemporaryDirectory(prefix="flexspec-bench-") as scratch:
        peers, left_out = make_peers(config.against, _peer_task(config, compiled, loaded, dtype, Path(scratch)))
        bench = _Bench(config=config, compiled=compiled, ours=ours, peers=peers, left_out=left_out, say=say)
        return BenchRun(config=config, llm=compiled.llm, results=_run_parts(bench, parts))


def _select(config: BenchConfig, llm: LLM, texts: Sequence[PromptText], warm_up_texts: Sequence[PromptText]) -> list[PromptSelection]:
    """The prompts of each part."""
    max_len, max_tokens = llm.plan.strategy.max_len, config.settings.max_tokens
    assert max_len is not None
    room = max_len - max_tokens
    if room < 1:
        raise UsageError(
            f"max-tokens={max_tokens} is too large: texts of {config.model} have at most {max_len} tokens, prompt included; "
            f"give at most {max_len - 1}"
        )
    return [select_prompts(llm, texts, warm_up_texts, room=room, batch=batch, warm_up=config.warm_up) for batch in config.batches]


def _peer_task(config: BenchConfig, compiled: CompiledDrafters, loaded: LoadedModel, dtype: torch.dtype, scratch: Path) -> PeerTask:
    max_len = compiled.llm.plan.strategy.max_len
    assert max_len is not None
    assistant = _assistant(compiled, loaded, dtype) if config.against else None
    return PeerTask(loaded=loaded, dtype=dtype, settings=config.settings, max_len=max_len, scratch=scratch, assistant=assistant)


def _assistant(compiled: CompiledDrafters, loaded: LoadedModel, dtype: torch.dtype) -> LoadedModel | None:
    """The first drafter that is a whole model."""
    ssm = next(iter(compiled.whole_models), None)
    if ssm is None:
        return None
    tuned = load_if_tuned(ssm, loaded, whole=True)
    assistant = load_ssm(ssm, loaded) if tuned is None else tuned.loaded
    return replace(assistant, module=assistant.module.to(dtype))


def _run_parts(bench: _Bench, parts: Sequence[PromptSelection]) -> list[BenchResult]:
    results: list[BenchResult] = []
    try:
        for batch, part in zip(bench.config.batches, parts, strict=True):
            results.append(_run_part(bench, batch, part))
            if results[-1].interrupted:
                break
    except KeyboardInterrupt:
        if not results:
            raise
    return results


def _run_part(bench: _Bench, batch: int, part: PromptSelection) -> BenchResult:
    config, ours, llm, synthetic = bench.config, bench.ours, bench.compiled.llm, bench.compiled.synthetic
    peers = bench.peers if batch == 1 else ()
    systems: list[System] = [*ours, *peers]
    say = bench.say if len(config.batches) == 1 else lambda what: bench.say(f"batch {batch}: {what}")
    date = datetime.now(UTC).isoformat(timespec="seconds")
    warm_up(systems, part.warm_up, say)
    for system in ours:
        system.reset()
    if synthetic is not None:
        synthetic.reset_counts()
    samples, interrupted = interleave(systems, part.groups, say, repeat=config.repeat)
    lowering = llm.plan.llm.model.lowering
    categories = by_category(samples)
    return BenchResult(
        date=date,
        machine=describe_machine() | {"target": lowering.target, "row_invariance": str(llm.plan.llm.row_invariance)},
        versions=describe_versions(peer_packages([peer.name for peer in peers])),
        settings=_settings(bench, batch, part),
        rows=make_rows(systems, samples),
        ratios=make_ratios(ours, peers, samples),
        ratios_by_category={category: make_ratios(ours, peers, group) for category, group in categories.items()},
        step_times={system.name: system.step_times for system in ours},
        drafts=report_drafts(systems, samples),
        undrafted=None if synthetic is None else synthetic.lost_share,
        samples=samples,
        left_out=bench.left_out if batch == 1 else {},
        too_long=part.too_long,
        too_few=part.too_few,
        slow_targets=slow_targets(llm),
        interrupted=interrupted,
    )


def _settings(bench: _Bench, batch: int, part: PromptSelection) -> dict[str, Any]:
    config, strategy = bench.config, bench.compiled.llm.plan.strategy
    main = bench.ours[0]  # plain if the main system does not draft
    return {
        "model": config.model,
        "dtype": strategy.dtype,
        "drafters": list(main.drafters),
        "verifier": strategy.verifier,
        "tree": tree_as_json(main.tree),
        "also": list(config.also),
        "synthetic_acceptance": config.synthetic_acceptance,
        **asdict(config.settings),
        "batch": batch,
        "batches": list(config.batches),
        "repeat": config.repeat,
        "warm_up": [prompt.id for group in part.warm_up for prompt in group.prompts],
    }
