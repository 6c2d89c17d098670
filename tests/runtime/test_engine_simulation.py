"""Random traffic: requests come, end, and are aborted, under small budgets and with every kind of draft."""

import random

import pytest

from engine_reference import cached_tokens, plain
from flexspec.config import SamplingParams
from flexspec.runtime.cache_sizes import CacheSizes
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel

VOCAB, EOS = 12, (0,)


class Checked(ToyModel):
    """Notes the size of every pass and that no two requests share a slot."""

    pass_tokens = 0

    def forward(self, batch, kv):
        assert batch.num_tokens <= self.pass_tokens
        ends = [int(batch.slots[batch.request_rows == row].max()) + 1 for row in range(len(batch.tail_starts))]
        blocks = [table[: -(-end // kv.block_size)].tolist() for table, end in zip(batch.block_tables, ends, strict=True)]
        assert len({block for own in blocks for block in own}) == sum(map(len, blocks)), "requests share a block"
        assert len(set(zip(batch.request_rows.tolist(), batch.slots.tolist(), strict=True))) == batch.num_tokens
        return super().forward(batch, kv)


@pytest.mark.parametrize("seed", range(12))
def test_random_traffic(seed):
    rng = random.Random(seed)
    model = Checked(vocab_size=VOCAB, seed=seed, max_pass_tokens=32)
    model.pass_tokens = rng.choice([3, 6, 9, 32])
    draft = ToyModel(vocab_size=VOCAB, seed=seed, noise=rng.choice([0.0, 0.4, 1.0]))
    tree = TreeSpec(widths=rng.choice([(1,), (4,), (1, 1, 1), (2, 2, 1)]))
    sizes = {"max_batch": rng.randint(1, 3), "max_len": 40, "pass_tokens": model.pass_tokens}
    block_size = rng.choice([None, 1, 3, 8])
    room = 40 + CacheSizes.of(tree, **sizes).tree_nodes
    engine = Engine(
        model,
        drafters=[ToyDrafter(draft)] if rng.random() < 0.9 else [],
        tree=tree,
        eos_token_ids=EOS,
        block_size=block_size,
        num_blocks=None if block_size is None else -(-room // block_size) + rng.randint(0, 3),
        **sizes,
    )
    arguments: dict[int, tuple[list[int], SamplingParams]] = {}
    texts: dict[int, list[int]] = {}
    aborted = set()
    for _ in range(60):
        if rng.random() < 0.3:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 30))]
            params = SamplingParams(
                max_tokens=rng.randint(1, 20), temperature=rng.choice([0.0, 0.8]), seed=rng.randrange(2**64), ignore_eos=rng.random() < 0.5
            )
            request_id = engine.add(prompt, params)
            arguments[request_id], texts[request_id] = (prompt, params), []
        if texts and rng.random() < 0.05:
            request_id = rng.choice(list(texts))
            output = engine.abort(request_id)
            if output is not None:
                aborted.add(request_id)
                assert output.token_ids == texts[request_id]
        _step(engine, arguments, texts)
    while engine.has_work:
        _step(engine, arguments, texts)
    for request_id, (prompt, params) in arguments.items():
        expected = plain(model, prompt, params, eos=EOS, max_len=40)
        produced = texts[request_id]
        assert produced == (expected[: len(produced)] if request_id in aborted else expected)
    assert engine.cache.num_free_blocks == engine.cache.storage.num_blocks


def _step(engine, arguments, texts):
    emitted, ended, oldest = set(), {None}, min(engine.cache.request_ids, default=None)
    for chunk in engine.step():
        texts[chunk.request_id] += chunk.token_ids
        emitted.add(chunk.request_id)
        ended |= {chunk.request_id} if chunk.output is not None else set()
    cache = engine.cache
    assert oldest in ended | cache.request_ids, "the oldest was preempted"
    held = [-(-cache.capacity(request_id) // cache.storage.block_size) for request_id in cache.request_ids]
    assert sum(held) + cache.num_free_blocks == cache.storage.num_blocks
    for request_id in engine.cache.request_ids:
        text = arguments[request_id][0] + texts[request_id]
        cached = cached_tokens(engine.cache, request_id)
        assert cached == text[: len(cached)] and (request_id not in emitted or len(cached) == len(text) - 1)
