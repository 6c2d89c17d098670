"""The configurations of SpecInfer's evaluation (Miao et al., ASPLOS 2024, section 6), as the search sees them.

Nothing here is fitted to the speed-ups that the paper measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np
from scipy.optimize import brentq
from transformers import LlamaConfig, OPTConfig, PreTrainedConfig

from flexspec.calibration.report.known_acceptance import expected_tokens, known_acceptance
from flexspec.passes.search.cost import CostModel
from flexspec.passes.search.drafter_record import DrafterRecord
from flexspec.passes.search.hardware import Hardware, load_hardware
from flexspec.passes.search.records import ModelRecord, model_record
from flexspec.passes.search.result import SearchResult
from flexspec.passes.search.run import search_strategy
from flexspec.passes.search.solve import solve
from flexspec.passes.search.space import Workload
from flexspec.passes.search.trees import GrownTree

BATCHES = (1, 2, 4, 8, 16)
PAPER_RATIOS = (1.5, 2.8)
"""Lowest and highest speed-up over other systems that the paper gives for distributed serving."""
PAPER_TREE = (1, 1, 3, 1, 1, 1, 1, 1)
_MAX_TREE = 64
_CONTEXT, _NEW_TOKENS = 64, 128
"""The paper generates 128 tokens; its prompts are short questions and instructions, whose lengths it does not give."""

HIT_RATES = ((68, 77, 81, 84, 85), (69, 79, 83, 86, 87), (62, 72, 77, 80, 82), (70, 81, 85, 88, 89), (63, 75, 79, 83, 85))
"""Per cent of the LLM's greedy tokens among LLaMA-68M's likeliest 1 to 5 (table 1), by data set: Alpaca, CP, WebQA, CIP, PIQA."""
TOKENS_PER_STEP = (
    (2.95, 3.07, 3.21, 3.33, 3.43),
    (2.58, 3.24, 3.46, 3.59, 3.69),
    (2.27, 2.69, 2.86, 2.98, 3.07),
    (2.73, 3.40, 3.62, 3.79, 3.91),
    (2.18, 2.80, 2.97, 3.10, 3.21),
)
"""That greedy verification emits with trees ⟨1,1,k,1,1,1,1,1⟩, k from 1 to 5, on the same data sets (table 2)."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """A row of the paper's evaluation.

    Attributes:
        title: model and hardware in words.
        model: configuration of the LLM.
        ssm: of the SSM.
        ssm_name: its name.
        hardware: name of the preset.
        devices: how many of its devices there are; None for all.
    """

    title: str
    model: PreTrainedConfig
    ssm: PreTrainedConfig
    ssm_name: str
    hardware: str
    devices: int | None = None


def configurations() -> list[Configuration]:
    """The three, with the sizes that the models' own configuration files have."""
    return [
        Configuration(
            title="LLaMA-7B, 1 x A10G",
            model=_llama(hidden=4096, inner=11008, layers=32, heads=32),
            ssm=_llama(hidden=768, inner=3072, layers=2, heads=12),
            ssm_name="LLaMA-68M",
            hardware="a10gx4",
            devices=1,
        ),
        Configuration(
            title="OPT-30B, 4 x A10G",
            model=_opt(hidden=7168, layers=48, heads=56),
            ssm=_opt(hidden=768, layers=12, heads=12),
            ssm_name="OPT-125M",
            hardware="a10gx4",
        ),
        Configuration(
            title="LLaMA-65B, 2 x 4 A10G, 100 GbE",
            model=_llama(hidden=8192, inner=22016, layers=80, heads=64),
            ssm=_llama(hidden=768, inner=3072, layers=2, heads=12),
            ssm_name="LLaMA-68M",
            hardware="a10gx4-2nodes",
        ),
    ]


def rank_chances() -> list[float]:
    """P(accepted | parent accepted) by rank, of the paper's SSM, as means over its data sets.

    The hit rates give how ranks relate to each other. That hits are fewer deeper in a tree, where the SSM reads its own drafts, is one
    factor for all of them: the one by which the paper's own tree emits what the paper counted with it.
    """
    hits = np.mean(HIT_RATES, axis=0) / 100
    rates = np.diff(hits, prepend=0.0)
    counted = float(np.mean(TOKENS_PER_STEP, axis=0)[max(PAPER_TREE) - 1])
    factor = brentq(lambda scale: expected_tokens(PAPER_TREE, (scale * rates).tolist()) - counted, 0.1, 1.0 / float(hits[-1]))
    return [float(factor * rate) for rate in rates]


@dataclass(frozen=True, kw_only=True)
class Records:
    """What the search knows of a configuration, read once."""

    model: ModelRecord
    drafter: DrafterRecord
    hardware: Hardware


def records(configuration: Configuration) -> Records:
    """Read off the configurations of the models; no weights are needed."""
    one = configuration
    hardware = load_hardware(one.hardware)
    return Records(
        model=model_record(one.model, name=one.title),
        drafter=DrafterRecord(name=one.ssm_name, model=model_record(one.ssm, name=one.ssm_name)),
        hardware=hardware if one.devices is None else first_devices(hardware, one.devices),
    )


def first_devices(hardware: Hardware, count: int) -> Hardware:
    """The same hardware with its first devices alone."""
    others = range(count, hardware.num_devices)
    links: nx.Graph = hardware.links.copy()
    links.remove_nodes_from(others)
    return replace(hardware, name=f"{count} of {hardware.name}", devices=hardware.devices[:count], links=links)


def found(known: Records, batch: int) -> SearchResult:
    """What the search takes for a batch."""
    acceptance = known_acceptance(known.drafter.name, rank_chances())
    return search_strategy(known.model, [known.drafter], known.hardware, _workload(batch, _MAX_TREE), acceptance)


def _workload(batch: int, max_tree: int) -> Workload:
    return Workload(batch=batch, context=_CONTEXT, new_tokens=_NEW_TOKENS, max_tree=max_tree, dtype="float16")


def with_paper_tree(known: Records, batch: int) -> float:
    """Milliseconds a token of the best strategy with the paper's own tree."""
    chances = rank_chances()
    name = known.drafter.name
    levels = tuple(np.cumprod(PAPER_TREE).tolist())
    tree = GrownTree(size=sum(levels), expected=expected_tokens(PAPER_TREE, chances), levels={name: levels}, branch=max(PAPER_TREE))
    costs = CostModel(known.model, [known.drafter], known.hardware, _workload(batch, tree.size), known_acceptance(name, chances))
    costs.drafting.compare_only((name,), [tree])
    drafting = (case for case in costs.cases() if case.option.drafters)
    return 1e3 * solve(drafting).fastest


def counted_and_modelled(chances: Sequence[float]) -> list[tuple[int, float, float]]:
    """For k children in the third level: tokens a step as the paper counted them, and as the chances have it."""
    counted = np.mean(TOKENS_PER_STEP, axis=0)
    return [
        (k, float(counted[k - 1]), expected_tokens([k if width > 1 else 1 for width in PAPER_TREE], chances))
        for k in range(1, len(counted) + 1)
    ]


def _llama(*, hidden: int, inner: int, layers: int, heads: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=32000,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=2048,
    )


def _opt(*, hidden: int, layers: int, heads: int) -> OPTConfig:
    return OPTConfig(
        vocab_size=50272,
        hidden_size=hidden,
        word_embed_proj_dim=hidden,
        ffn_dim=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=2048,
    )
