"""A whole benchmark: compile, find the peers, encode the prompts, run, report."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from flexspec.api.compile import compile
from flexspec.api.engine import make_engine
from flexspec.api.llm import LLM
from flexspec.bench.flexspec_system import FlexspecSystem
from flexspec.bench.interleave import BenchPrompt, Sample, Say, interleave, warm_up
from flexspec.bench.llama_cpp import PACKAGE as LLAMA_CPP
from flexspec.bench.machine import describe_machine, describe_versions
from flexspec.bench.measurement import GenerationSettings, System
from flexspec.bench.peer import PeerTask
from flexspec.bench.peers import PEERS, make_peers
from flexspec.bench.prompt_text import PromptText, encode_text
from flexspec.bench.report import PLAIN, SPECULATIVE, Row, make_ratios, make_rows
from flexspec.bench.statistics import Ratio
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.models.load import load_model
from flexspec.runtime.stats import Profile


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured.

    Attributes:
        model: as `flexspec.compile` takes it.
        ssms: likewise.
        dtype: likewise; every peer gets the same.
        tree: likewise.
        verifier: likewise.
        settings: what is generated.
        against: names of peers.
    """

    model: str
    settings: GenerationSettings
    ssms: Sequence[str] | None = None
    dtype: str | None = None
    tree: str | None = None
    verifier: str | None = None
    against: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """What came out.

    Attributes:
        llm: the compiled model.
        machine: what it ran on.
        versions: of what ran.
        settings: what was asked for, defaults filled in.
        rows: by category and system.
        ratios: by `system/system`.
        profiles: where decode steps spent their time, by name of our systems.
        left_out: peers that could not be measured, and why.
        too_long: ids of prompts that don't fit.
    """

    llm: LLM
    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    rows: Sequence[Row]
    ratios: dict[str, Ratio]
    profiles: dict[str, Profile]
    left_out: dict[str, str]
    too_long: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """What `flexspec bench --json` writes."""
        return {
            "machine": self.machine,
            "versions": self.versions,
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
            "ratios": {name: asdict(ratio) for name, ratio in self.ratios.items()},
            "left_out": {"peers": self.left_out, "prompts": list(self.too_long)},
        }


def run_bench(config: BenchConfig, texts: Sequence[PromptText], say: Say) -> BenchResult:
    """Measure flexspec, plain and speculative, and its peers on the same token ids, interleaved prompt by prompt.

    Args:
        config: what is measured.
        texts: the prompts, in the order in which they run.
        say: is told what happens.

    Raises:
        UsageError: if an option is not allowed, no prompt fits, or the native kernels failed to compile.
    """
    settings = config.settings
    # Mistakes should not cost a compilation first.
    SamplingParams(max_tokens=settings.max_tokens, temperature=settings.temperature, top_p=settings.top_p)
    for name in config.against:
        PEERS.get(name)
    say(f"compiling {config.model}")
    llm = compile(config.model, config.ssms, dtype=config.dtype, tree=config.tree, verifier=config.verifier, max_batch=1)
    for compilation in (llm.plan.llm, *llm.plan.ssms):
        if compilation.model.lowering.compile_failed:
            raise UsageError(
                f"{compilation.name} can't be measured: {compilation.model.lowering.reason}; mend the compiler, or name another in CXX"
            )
    strategy = llm.plan.strategy
    assert strategy.max_len is not None
    prompts, too_long = fitting_prompts(llm, texts, room=strategy.max_len - settings.max_tokens)
    dtype: torch.dtype = getattr(torch, strategy.dtype)
    loaded = load_model(config.model, dtype=dtype)
    ours = [FlexspecSystem(PLAIN, make_engine(llm.plan.llm.model, loaded, strategy, drafters=[]), settings)]
    if strategy.drafters:
        ours.append(FlexspecSystem(SPECULATIVE, llm.engine, settings, drafters=strategy.drafters, tree=strategy.tree))
    with tempfile.TemporaryDirectory(prefix="flexspec-bench-") as scratch:
        task = PeerTask(loaded=loaded, dtype=dtype, settings=settings, max_len=strategy.max_len, scratch=Path(scratch))
        peers, left_out = make_peers(config.against, task)
        systems: list[System] = [*ours, *peers]
        samples = _measure(ours, systems, prompts, say)
    measured = [LLAMA_CPP] if any(peer.name == "llama.cpp" for peer in peers) else []
    lowering = llm.plan.llm.model.lowering
    return BenchResult(
        llm=llm,
        machine=describe_machine() | {"target": lowering.target, "row_invariance": str(llm.plan.llm.row_invariance)},
        versions=describe_versions(measured),
        settings={"model": config.model, "dtype": strategy.dtype, "verifier": strategy.verifier, **asdict(settings)},
        rows=make_rows(systems, samples),
        ratios=make_ratios(systems, samples),
        profiles={system.name: system.decode_profile for system in ours},
        left_out=left_out,
        too_long=too_long,
    )


def _measure(ours: Sequence[FlexspecSystem], systems: Sequence[System], prompts: Sequence[BenchPrompt], say: Say) -> list[Sample]:
    warm_up(systems, prompts[0], say)
    for system in ours:
        system.reset_profile()
    return interleave(systems, prompts, say)


def fitting_prompts(llm: LLM, texts: Sequence[PromptText], *, room: int) -> tuple[list[BenchPrompt], list[str]]:
    """The prompts of at most `room` tokens, encoded, and the ids of the others.

    Raises:
        UsageError: if none fits.
    """
    prompts, too_long = [], []
    for text in texts:
        ids = encode_text(llm, text)
        if len(ids) > room:
            too_long.append(text.id)
        else:
            prompts.append(BenchPrompt(id=text.id, category=text.category, token_ids=ids))
    if not prompts:
        raise UsageError(
            f"none of the {len(texts)} prompts leaves room for the new tokens: prompts of up to {room} tokens fit; give shorter ones"
        )
    return prompts, too_long
