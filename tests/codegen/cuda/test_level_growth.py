"""Trees grown by a real model in one go, against its logits after every path."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from codegen_cases import text

from flexspec.codegen.batch import Batch, Int64, chain_batch
from flexspec.codegen.cuda import level_growth
from flexspec.codegen.cuda.compile import compile_for_gpu
from flexspec.codegen.cuda.gpu_model import GpuModel
from flexspec.codegen.cuda.kernels.draft_level import draft_level
from flexspec.codegen.cuda.kernels.draft_top import draft_top
from flexspec.codegen.cuda.kernels.philox import gumbel_reference, words_reference
from flexspec.codegen.cuda.kernels.tree_verify import tree_verify, tree_verify_reference
from flexspec.codegen.cuda.level_growth import GpuLevelGrower
from flexspec.codegen.device_trees import BITS, DEPTH, PARENT, TOKEN, GrownRows
from flexspec.codegen.kv_storage import KVStorage
from flexspec.codegen.level_growth import GrownLevel, GrowthPlan, LevelGrower
from flexspec.codegen.weight_store import WeightStore
from flexspec.ir.capture import capture
from flexspec.passes.manager import run_passes
from flexspec.passes.pipeline import RECOGNITION, SERVING
from flexspec.runtime.token_tree import TokenTree
from graph_cases import Head, served

TEXTS = [text(length, length) for length in (9, 1, 14)]
LIMITS = [[(2, 2), (2, 4), (1, 4)], [(1, 1), (1, 1), (1, 1)], [(3, 4), (3, 2), (0, 0)]]
"""Static, a chain, and one that keeps the likeliest."""
PAGE, PAGES, VOCAB = 8, 4, 288


def compiled(graph: object) -> GpuModel:
    return compile_for_gpu(
        graph,  # type: ignore[arg-type]
        dtype=torch.float32,
        max_positions=None,
        buckets=(4, 16, 64),
        store=WeightStore(),
        device=torch.device("cpu"),
        compile_blocks=False,
    )


@pytest.fixture(scope="module")
def model() -> GpuModel:
    return compiled(served("llama")[1])


def plan_of(limits: Sequence[Sequence[tuple[int, int]]] = LIMITS, **changes: object) -> GrowthPlan:
    count = len(limits)
    given = {
        "lengths": np.array([len(ids) for ids in TEXTS[:count]], dtype=np.int32),
        "skipped": 0,
        "block_tables": np.arange(count * PAGES, dtype=np.int32).reshape(PAGES, count).T.copy(),
        "limits": np.array(limits, dtype=np.int32).reshape(count, -1, 2),
        "num_children": 3,
        "seeds": np.array([2**64 - 1, 5, 6], dtype=np.uint64)[:count],
        "completions": np.arange(count, dtype=np.int32),
        "temperatures": np.zeros(count),
        "alphas": np.array([1.0, 0.5, 0.0])[:count],
        "num_columns": VOCAB,
    }
    return GrowthPlan(**{**given, **changes})  # type: ignore[arg-type]


def fed(model: GpuModel, plan: GrowthPlan) -> tuple[KVStorage, torch.Tensor]:
    """A cache that holds the texts, NaN elsewhere; and the logits after them."""
    kv = KVStorage(model.kv_shape, num_blocks=len(plan.lengths) * PAGES, block_size=PAGE)
    kv.keys.fill_(math.nan)
    kv.values.fill_(math.nan)
    rows = [
        model.forward(chain_batch(ids, block_table=table[np.newaxis], output_rows=np.array([len(ids) - 1], dtype=np.int32)), kv).clone()
        for ids, table in zip(TEXTS, plan.block_tables, strict=False)
    ]
    return kv, torch.cat(rows)


def grown(
    grower: LevelGrower, kv: KVStorage, plan: GrowthPlan, logits: torch.Tensor, states: torch.Tensor | None = None
) -> Sequence[GrownLevel]:
    growth = grower.grow(kv, plan, logits, states)
    return growth.read(growth.packed.numpy()).levels


def after(model: GpuModel, path: Int64) -> torch.Tensor:
    kv = KVStorage(model.kv_shape, num_blocks=1, block_size=64)
    return model.forward(chain_batch(path, output_rows=np.array([len(path) - 1], dtype=np.int32)), kv)[0].clone()


def wanted(model: GpuModel, plan: GrowthPlan, row: int) -> list[list[tuple[int, int, list[int], list[float]]]]:
    """Of each level, each node's place of its parent, token, children, and logarithms of their shares."""
    ids = np.arange(VOCAB) if plan.token_ids is None else plan.token_ids
    level, levels = [(0, 0, TEXTS[row], 0.0)], []
    for depth in range(plan.limits.shape[1] + 1):
        found, candidates = [], []
        branch, budget = plan.limits[row, depth] if depth < plan.limits.shape[1] else (0, 0)
        for place, (parent, token, path, score) in enumerate(level):
            values = after(model, path)[: plan.num_columns].double().numpy()
            share = values = values / (plan.temperatures[row] or 1.0)
            if plan.temperatures[row]:
                key = int(plan.seeds[row]), int(plan.completions[row])
                noise = gumbel_reference(words_reference(*key, index=len(path), stream=0, first=0, count=VOCAB))[ids[: len(values)]]
                values, share = values + plan.alphas[row] * noise, values + noise
            logs = torch.log_softmax(torch.from_numpy(share), 0).numpy()
            best = (-values).argsort(kind="stable")[: plan.num_children]
            found.append((parent, token, ids[best].tolist(), logs[best].tolist()))
            candidates += [(place, int(ids[one]), np.append(path, ids[one]), score + logs[one]) for one in best[:branch]]
        levels.append(found)
        kept = sorted(sorted(range(len(candidates)), key=lambda one: -candidates[one][3])[:budget])
        level = [candidates[one] for one in kept]
    return levels


def assert_grown(model: GpuModel, plan: GrowthPlan, levels: Sequence[GrownLevel], rows: Sequence[int]) -> None:
    for row in rows:
        for level, nodes in zip(levels, wanted(model, plan, row), strict=True):
            assert int(level.counts[row]) == len(nodes)
            for place, (parent, token, children, log_probs) in enumerate(nodes):
                if level is not levels[0]:
                    assert (level.parents[row, place], level.tokens[row, place]) == (parent, token)
                assert level.children[row, place].tolist() == children
                np.testing.assert_allclose(level.log_probs[row, place], log_probs, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_node_gets_what_follows_its_path(model: GpuModel, temperature: float) -> None:
    plan = plan_of(temperatures=np.array([temperature, 0.0, temperature]), num_candidates=5)
    kv, logits = fed(model, plan)
    levels = grown(model.level_grower, kv, plan, logits)
    assert_grown(model, plan, levels, range(3))
    assert [level.counts.tolist() for level in levels] == [[1, 1, 1], [2, 1, 3], [4, 1, 2], [4, 1, 0]]
    for row in range(3):
        likeliest = after(model, TEXTS[row]).topk(5)
        assert levels[0].candidates[row, 0].tolist() == likeliest.indices.tolist()
        np.testing.assert_allclose(levels[0].candidate_logits[row, 0], likeliest.values, atol=1e-4)
        used = len(TEXTS[row]) + sum(int(level.counts[row]) for level in levels[1:])
        written = ~kv.keys.view(kv.keys.shape[0], -1, PAGE, *kv.keys.shape[2:])[:, plan.block_tables[row]].isnan().flatten(3).all(3)
        assert written.flatten(1).sum(1).tolist() == [used] * len(written), "padding touches nothing"


def test_a_trimmed_vocabulary(model: GpuModel) -> None:
    plan = plan_of(token_ids=np.arange(0, 100, 2, dtype=np.int64), num_columns=41, temperatures=np.ones(3))
    kv, logits = fed(model, plan)
    assert_grown(model, plan, grown(model.level_grower, kv, plan, logits), range(3))


def test_roots_alone(model: GpuModel) -> None:
    plan = plan_of([[], [], []])
    kv, logits = fed(model, plan)
    levels = grown(model.level_grower, kv, plan, logits)
    assert len(levels) == 1
    assert_grown(model, plan, levels, range(3))


def test_the_kernels_grow_what_their_references_grow(model: GpuModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of([[(2, 2), (2, 3)], [(1, 1), (1, 1)]], temperatures=np.array([0.0, 0.9]))
    kv, logits = fed(model, plan)
    expected = grown(model.level_grower, kv, plan, logits)
    monkeypatch.setattr(level_growth, "draft_top_reference", draft_top)  # in Triton's interpreter
    monkeypatch.setattr(level_growth, "draft_level_reference", draft_level)
    kv, logits = fed(model, plan)
    for level, other in zip(grown(model.level_grower, kv, plan, logits), expected, strict=True):
        for name in ("counts", "tokens", "parents", "children"):
            np.testing.assert_array_equal(getattr(level, name), getattr(other, name))
        np.testing.assert_allclose(level.log_probs, other.log_probs, atol=1e-5)


def test_what_exceeds_a_pass_is_grown_in_parts(model: GpuModel) -> None:
    plan = plan_of(temperatures=np.full(3, 0.8))
    kv, logits = fed(model, plan)
    whole = grown(model.level_grower, kv, plan, logits)
    small = replace(model.level_grower._model, sizes=replace(model.level_grower._model.sizes, tokens=(4, 8)))
    kv, logits = fed(model, plan)
    grower = GpuLevelGrower(small, model.level_grower.states)
    for level, other in zip(grown(grower, kv, plan, logits), whole, strict=True):
        for name in ("counts", "tokens", "parents", "children"):
            np.testing.assert_array_equal(getattr(level, name), getattr(other, name))
    assert len(grower._growths[kv]) == 2, "two requests, and the third"


def test_envelopes_are_few(model: GpuModel) -> None:
    plan = plan_of()
    kv, logits = fed(model, plan)
    for limits in (LIMITS, [[(3, 3), (1, 3), (1, 3)]] * 3, [[(4, 4), (0, 0), (2, 3)], *LIMITS[:2]]):
        grown(model.level_grower, kv, replace(plan, limits=np.array(limits, dtype=np.int32)), logits)
    assert len(model.level_grower._growths[kv]) == 1, "levels of up to 4, 4 and 4 nodes"
    grown(model.level_grower, kv, replace(plan, temperatures=np.ones(3)), logits)
    assert len(model.level_grower._growths[kv]) == 2


def test_what_kernels_cover(model: GpuModel) -> None:
    covers = model.level_grower.covers
    assert covers([], 8) and covers([1] * 40, 1) and covers([8, 64], 8) and covers([64] * 16, 8)
    assert not covers([], 9), "children of a node"
    assert not covers([65], 8), "tokens of a pass"
    assert not covers([64] * 17, 8), "bits of a row"


@pytest.fixture(scope="module")
def head() -> GpuModel:
    graph = capture(Head(features=20), name="head", hidden_states=("layer",), feature_size=20)
    with torch.no_grad():
        run_passes(graph, (*RECOGNITION, *SERVING))
    return compiled(graph)


def test_a_head_is_fed_its_own_states(head: GpuModel) -> None:
    ids, features = TEXTS[0], torch.randn(len(TEXTS[0]), 20)
    plan = plan_of([[(2, 2), (2, 3)]], skipped=1, temperatures=np.ones(1))
    kv = KVStorage(head.kv_shape, num_blocks=PAGES, block_size=PAGE)
    logits = head.forward(chain_batch(ids, block_table=plan.block_tables), kv, features)[-1:].clone()
    state = head.level_grower.states([len(ids) - 1])
    levels = grown(head.level_grower, kv, plan, logits, state)
    assert [int(level.counts[0]) for level in levels] == [1, 2, 3]
    states, bits, start = [[state[0]]], [[0]], len(ids)
    for depth, level in enumerate(levels):
        width = int(level.counts[0])
        if depth:
            parents, first = level.parents[0, :width].tolist(), start - len(ids)
            bits.append([bits[-1][parent] | 1 << first + own for own, parent in enumerate(parents)])
            given = torch.stack([torch.cat([torch.zeros(4), states[-1][parent]]) for parent in parents])
            batch = Batch(
                token_ids=level.tokens[0, :width].astype(np.int64),
                positions=np.full(width, len(ids) - 1 + depth, dtype=np.int64),
                request_rows=np.zeros(width, dtype=np.int32),
                slots=np.arange(start, start + width, dtype=np.int32),
                context_lens=np.full(width, len(ids), dtype=np.int32),
                tail_starts=np.array([len(ids)], dtype=np.int32),
                tail_bits=np.array(bits[-1], dtype=np.int32)[:, np.newaxis],
                block_tables=plan.block_tables,
                output_rows=np.arange(width, dtype=np.int32),
            )
            logits = head.forward(batch, kv, given).clone()
            states.append(list(head.hidden_states(range(width))))
            start += width
        noise = gumbel_reference(words_reference(2**64 - 1, 0, index=len(ids) + 1 + depth, stream=0, first=0, count=VOCAB))
        scores = logits.double().numpy() + noise
        assert level.children[0, :width].tolist() == (-scores).argsort(axis=1)[:, :3].tolist()


def tree_batch(trees: Sequence[TokenTree], plan: GrowthPlan) -> Batch:
    """The trees behind the texts without their last tokens, which are the roots."""
    starts = [len(ids) - 1 for ids in TEXTS]
    sizes = [len(tree.tokens) for tree in trees]
    first = np.repeat(starts, sizes).astype(np.int32)
    places = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    return Batch(
        token_ids=np.concatenate([tree.tokens for tree in trees]).astype(np.int64),
        positions=first + np.concatenate([tree.depths() for tree in trees]),
        request_rows=np.repeat(np.arange(len(trees), dtype=np.int32), sizes),
        slots=first + places,
        context_lens=first,
        tail_starts=np.array(starts, dtype=np.int32),
        tail_bits=np.concatenate([tree.ancestor_bits() for tree in trees]),
        block_tables=plan.block_tables,
        output_rows=np.arange(len(first), dtype=np.int32),
    )


def test_a_batch_that_the_device_completes_is_the_hosts(model: GpuModel) -> None:
    branches = np.array([[2, 2, 1, 2], [1, 1, 1, 1], [3, 3, 3, 0]], dtype=np.int32)
    plan = plan_of(num_nodes=9, branches=branches, temperatures=np.full(3, 0.8))
    kv, logits = fed(model, plan)
    growth = model.level_grower.grow(kv, plan, logits, None)
    nodes, table, sizes = growth.read(growth.packed.numpy()).nodes, growth.nodes, [9, 7, 2]
    np.testing.assert_array_equal(nodes, table[:, :, :BITS])
    trees = [
        TokenTree(tokens=[int(ids[-1]), *real[:, TOKEN].tolist()], parents=[-1, *real[:, PARENT].tolist()])
        for ids, real in zip(TEXTS, (own[:size][own[:size, DEPTH] > 0] for own, size in zip(nodes, sizes, strict=True)), strict=True)
    ]
    assert [len(tree.tokens) for tree in trees] == [10, 5, 3], "a chain has no more than four nodes"

    ends = np.cumsum([1 + size for size in sizes])
    drafted = np.concatenate([np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)])
    grown_rows = GrownRows(rows=torch.cat([own[:size] for own, size in zip(table, sizes, strict=True)]), targets=torch.from_numpy(drafted))
    stand_ins = [TokenTree(tokens=[int(ids[-1])] * (1 + size), parents=[-1, *[0] * size]) for ids, size in zip(TEXTS, sizes, strict=True)]
    batch = tree_batch(stand_ins, plan)
    batch.positions[drafted] -= 1
    batch.tail_bits[drafted] = 0
    kv, _ = fed(model, plan)  # where nothing is behind the texts
    logits = model.forward(replace(batch, grown=grown_rows), kv).clone()
    other, _ = fed(model, plan)
    expected = model.forward(tree_batch(trees, plan), other)
    real = np.concatenate([np.arange(len(tree.tokens)) + end - 1 - size for tree, end, size in zip(trees, ends, sizes, strict=True)])
    np.testing.assert_allclose(logits[real], expected, atol=1e-5)
    assert bool(logits[real].isfinite().all())
    np.testing.assert_array_equal(kv.keys.isnan(), other.keys.isnan())


def test_padding_within_a_tree_is_never_walked() -> None:
    """Also by the kernel, in Triton's interpreter."""
    rows = torch.tensor([[5, 0, 1, 0], [0, -1, 0, -1], [0, -1, 0, -1]], dtype=torch.int32)
    tokens, parents = GrownRows(rows=rows, targets=torch.tensor([1, 2, 3])).tokens_and_parents(5)
    assert tokens.tolist() == [0, 5, 0, 0, 0] and parents.tolist() == [-1, 0, -1, -1, -1]
    logits = torch.full((5, 16), -1.0)
    logits[2:4] = math.nan
    logits[[0, 1, 4], [5, 0, 3]] = 1.0  # the first child, then a token that padding has
    keys = {"seeds": torch.tensor([3, 4]), "completions": torch.zeros(2, dtype=torch.int32), "indices": torch.tensor([7, 9]).int()}
    for noise in ({}, {**keys, "temperatures": torch.full((2,), 1e-3, dtype=torch.float64)}):
        for verify in (tree_verify, tree_verify_reference):
            given = {"node_starts": torch.tensor([0, 4, 5]).int(), "vocab_limits": torch.tensor([16, 16]).int(), "max_depth": 3}
            walks = verify(logits, tokens, parents, **given, **noise)
            assert walks.paths.tolist() == [[0, 1, -1], [0, -1, -1]]
            assert walks.lengths.tolist() == [2, 1] and walks.bonus.tolist() == [0, 3]
