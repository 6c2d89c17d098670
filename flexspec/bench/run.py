"""A whole benchmark: compile, find the peers, encode the prompts, run, report."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flexspec.api.compile import compile
from flexspec.api.engine import make_engine
from flexspec.api.llm import LLM
from flexspec.bench.config import BenchConfig
from flexspec.bench.drafters_again import drafters_again, given_drafters
from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.interleave import Say, interleave, warm_up
from flexspec.bench.llama_cpp import PACKAGE as LLAMA_CPP
from flexspec.bench.machine import describe_machine, describe_versions
from flexspec.bench.measurement import System
from flexspec.bench.peer import PeerTask
from flexspec.bench.peers import make_peers
from flexspec.bench.prompt_groups import PromptGroup
from flexspec.bench.prompt_selection import select_prompts
from flexspec.bench.prompt_text import PromptText
from flexspec.bench.report import PLAIN, SPECULATIVE, by_category, make_ratios, make_rows, name_with_tree
from flexspec.bench.result import BenchResult
from flexspec.errors import UsageError
from flexspec.models.load import load_model
from flexspec.models.loaded_model import LoadedModel
from flexspec.strategy import tree_as_json


def run_bench(config: BenchConfig, texts: Sequence[PromptText], say: Say, *, warm_up_texts: Sequence[PromptText] = ()) -> BenchResult:
    """Measure flexspec, plain and speculative, and its peers on the same token ids, interleaved prompt by prompt.

    Ctrl-C ends it early; what was measured by then is the result.

    Args:
        config: what is measured.
        texts: the prompts, in the order in which they run.
        say: is told what happens.
        warm_up_texts: prompts to warm up with; without any that fit, those that are measured.

    Raises:
        UsageError: if an option is not allowed, no prompt fits, or the native kernels failed to compile.
        KeyboardInterrupt: on Ctrl-C before anything was measured.
    """
    config.check()
    settings = config.settings
    say(f"compiling {config.model}")
    llm = _compile(config)
    strategy = llm.plan.strategy
    assert strategy.max_len is not None
    room = strategy.max_len - settings.max_tokens
    if room < 1:
        raise UsageError(
            f"max-tokens={settings.max_tokens} is too large: texts of {config.model} have at most {strategy.max_len} tokens, prompt "
            f"included; give at most {strategy.max_len - 1}"
        )
    chosen = select_prompts(llm, texts, warm_up_texts, room=room, batch=config.batch, warm_up=config.warm_up)
    dtype: torch.dtype = getattr(torch, strategy.dtype)
    loaded = load_model(config.model, dtype=dtype)
    ours = _flexspec_systems(config, llm, loaded)
    with tempfile.TemporaryDirectory(prefix="flexspec-bench-") as scratch:
        task = PeerTask(loaded=loaded, dtype=dtype, settings=settings, max_len=strategy.max_len, scratch=Path(scratch))
        peers, left_out = make_peers(config.against, task)
        systems: list[System] = [*ours, *peers]
        warm_up(systems, chosen.warm_up, say)
        for system in ours:
            system.reset()
        samples, interrupted = interleave(systems, chosen.groups, say, repeat=config.repeat)
    lowering = llm.plan.llm.model.lowering
    return BenchResult(
        llm=llm,
        machine=describe_machine() | {"target": lowering.target, "row_invariance": str(llm.plan.llm.row_invariance)},
        versions=describe_versions([LLAMA_CPP] if any(peer.name == "llama.cpp" for peer in peers) else []),
        settings=_settings(config, llm, chosen.warm_up),
        rows=make_rows(systems, samples),
        ratios=make_ratios(systems, samples),
        ratios_by_category={category: make_ratios(systems, group) for category, group in by_category(samples).items()},
        profiles={system.name: system.decode_profile for system in ours},
        drafts={system.name: system.draft_counts for system in ours if system.drafters},
        samples=samples,
        left_out=left_out,
        too_long=chosen.too_long,
        too_few=chosen.too_few,
        interrupted=interrupted,
    )


def _compile(config: BenchConfig) -> LLM:
    llm = compile(
        config.model,
        config.ssms,
        dtype=config.dtype,
        tree=config.tree,
        verifier=config.verifier,
        max_batch=config.batch,
        statistics=config.statistics,
        log_every_s=config.log_every_s,
    )
    for compilation in (llm.plan.llm, *llm.plan.ssms):
        if compilation.model.lowering.compile_failed:
            raise UsageError(
                f"{compilation.name} can't be measured: {compilation.model.lowering.reason}; mend the compiler, or name another in CXX"
            )
    return llm


def _flexspec_systems(config: BenchConfig, llm: LLM, loaded: LoadedModel) -> list[FlexspecSystem]:
    """Plain, the main system, and one for each further tree, all over the same compiled models."""
    model, strategy, settings = llm.plan.llm.model, llm.plan.strategy, config.settings
    systems = [FlexspecSystem(PLAIN, make_engine(model, loaded, strategy, drafters=[]), settings)]
    if not strategy.drafters:
        return systems
    names = [drafter.name for drafter in llm.drafters]  # no two are equal, unlike those of the strategy
    systems.append(FlexspecSystem(SPECULATIVE, llm.engine, settings, drafters=names, tree=strategy.tree))
    ssms = given_drafters(config.model, config.ssms)
    for tree in config.other_trees():
        engine = make_engine(model, loaded, strategy.replaced(tree=tree), drafters=drafters_again(llm, ssms, tree))
        systems.append(FlexspecSystem(name_with_tree(tree), engine, settings, drafters=names, tree=tree))
    return systems


def _settings(config: BenchConfig, llm: LLM, warm: Sequence[PromptGroup]) -> dict[str, Any]:
    strategy = llm.plan.strategy
    return {
        "model": config.model,
        "dtype": strategy.dtype,
        "drafters": list(strategy.drafters),
        "verifier": strategy.verifier,
        "tree": tree_as_json(strategy.tree),
        **asdict(config.settings),
        "batch": config.batch,
        "repeat": config.repeat,
        "warm_up": [prompt.id for group in warm for prompt in group.prompts],
    }
