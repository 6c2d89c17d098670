"""The part that times whole engines, with drafts that are right as often as is wanted."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.device_check.attempt import attempt
from flexspec.codegen.device_check.part import Context, Row
from flexspec.codegen.device_check.random_llama import BUCKETS, RandomLlama
from flexspec.codegen.device_check.tree_batch import BLOCK_SIZE
from flexspec.config import SamplingParams
from flexspec.runtime.drafters.base import Drafter
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.drafters.synthetic import SyntheticDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.output import Output
from flexspec.tree_shape import PLAIN, Tree, TreeSpec

_ITSELF = "drafts for itself"
_DRAFTED: tuple[tuple[Tree, float | str | None], ...] = (
    (PLAIN, None),
    *((TreeSpec(widths=widths), acceptance) for widths in ((1, 1, 1, 1), (2, 2, 1, 1)) for acceptance in (0.6, 0.8)),
    (TreeSpec(widths=(2, 2, 1, 1)), _ITSELF),
)
"""Trees, and how often the right token is among a node's children; a model that drafts for itself grows its trees on the device."""


@dataclass(kw_only=True)
class _Requests:
    """What is asked for, greedily, and what plain decoding made of it."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    texts: list[list[int]] = field(default_factory=list)


def engine_rows(context: Context, llama: RandomLlama) -> Iterator[Row]:
    """A row for each batch, tree and acceptance; without fused point-wise operators if there is a problem with them."""
    for is_fused in (False,) if context.is_dry else (True, False):
        rows = []
        for row in _rows(context, llama, is_fused=is_fused):
            rows.append(row)
            yield row
        if all(row["ok"] for row in rows):
            return


def _rows(context: Context, llama: RandomLlama, *, is_fused: bool) -> Iterator[Row]:
    sizes = context.sizes
    rng = np.random.default_rng(9)
    for batch in sizes.batches:
        requests = _Requests(
            prompts=rng.integers(llama.size.vocab, size=(batch, sizes.prompt_tokens)).tolist(),
            params=[SamplingParams(max_tokens=sizes.new_tokens, seed=seed, ignore_eos=True) for seed in range(batch)],
        )
        for tree, acceptance in _DRAFTED:
            row: Row = {"fused": is_fused, "batch": batch, "tree": str(tree), "acceptance": acceptance}
            if context.has_time(", ".join(f"{name} {value}" for name, value in row.items())):
                yield attempt(
                    row,
                    lambda requests=requests, tree=tree, acceptance=acceptance: _measure(  # type: ignore[misc]
                        context, llama.compiled(is_fused=is_fused, is_captured=True), requests, tree, acceptance
                    ),
                )


def _measure(context: Context, model: CompiledModel, requests: _Requests, tree: Tree, acceptance: float | str | None) -> Row:
    """Tokens a second, prompts included, of the last of two equal runs: in the first all is captured. A dry run makes do with one."""
    drafters = [] if acceptance is None else [_drafter(context, model, requests, tree, acceptance)]
    engine = Engine(
        model,
        drafters=drafters,
        tree=tree,
        max_batch=len(requests.prompts),
        max_len=context.sizes.prompt_tokens + context.sizes.new_tokens,
        pass_tokens=BUCKETS[-1],
        block_size=BLOCK_SIZE,
        log_every_s=None,
    )
    outputs: list[Output] = []
    seconds = 0.0
    for _ in range(1 if context.is_dry else 2):
        began = perf_counter()
        outputs = engine.generate(requests.prompts, requests.params)
        seconds = perf_counter() - began
    for output in outputs:
        output.raise_for_error()
    texts = [list(output.token_ids) for output in outputs]
    requests.texts = requests.texts or texts
    tokens = sum(map(len, texts))
    return {
        "tokens": tokens,
        "tokens/step": round(tokens / sum(output.stats.steps for output in outputs), 2),
        "tokens/s": None if context.is_dry else round(tokens / seconds, 1),
        "as plain": texts == requests.texts,
        "ok": texts == requests.texts,
    }


def _drafter(context: Context, model: CompiledModel, requests: _Requests, tree: Tree, acceptance: float | str) -> Drafter:
    if isinstance(acceptance, str):
        length = context.sizes.prompt_tokens + context.sizes.new_tokens + tree.num_nodes
        return SsmDrafter("itself", model, max_requests=len(requests.prompts), block_size=length)
    assert requests.texts, "plain decoding was not recorded"
    drafter = SyntheticDrafter(acceptance)
    for prompt, params, text in zip(requests.prompts, requests.params, requests.texts, strict=True):
        assert params.seed is not None
        drafter.record(prompt, params.seed, text)
    return drafter
