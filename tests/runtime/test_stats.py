"""What is counted, against counts made naively from what was verified and emitted."""

import json
import logging
import random
import re
from collections import Counter

import pytest

from flexspec.acceptance import AcceptanceTable
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.draft_counts import DraftCount, DraftCounts
from flexspec.runtime.drafters.ngram import NgramDrafter
from flexspec.runtime.engine import Engine
from flexspec.runtime.periodic_log import PeriodicLog, describe_window
from flexspec.runtime.stats import PHASES, PhaseClock
from flexspec.runtime.token_tree import Origin, TokenTree
from flexspec.tree_shape import PLAIN, TreeLimits, TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel

PROMPTS = [[3], list(range(20)), [5, 6, 7] * 10]
TREES = {
    "chain": TreeSpec(widths=(1, 1, 1, 1)),
    "wide": TreeSpec(widths=(2, 2, 1)),
    "adaptive": TreeLimits(depth=4, branch=2, budget=8),
}


def toy(**changes):
    return ToyModel(**{"vocab_size": 24, "seed": 3, "memory": 2, "max_pass_tokens": 64} | changes)


def drafters():
    return [ToyDrafter(toy(noise=0.3)), NgramDrafter()]


def engine(tree=TREES["wide"], **options):
    options = {"drafters": drafters(), "max_len": 128, "max_batch": 3} | options
    return Engine(toy(), tree=tree, **options)


def naive(steps):
    """Counts by ("drafter", name), ("depth", depth), ("rank", rank) and ("total",) of (tree, accepted path, number emitted)."""
    counts: dict[tuple, Counter] = {}
    for tree, path, emitted in steps:
        parents_tried = [node for place, node in enumerate(path) if place < emitted]
        seen = set()
        for node in range(1, len(tree.tokens)):
            depth, above = 1, tree.parents[node]
            while above:
                depth, above = depth + 1, tree.parents[above]
            kinds = {("total",), ("depth", depth), ("rank", min(origin.rank for origin in tree.origins[node]))}
            kinds |= {("drafter", origin.drafter) for origin in tree.origins[node]}
            for kind in kinds:
                count = counts.setdefault(kind, Counter())
                count["drafted"] += 1
                if tree.parents[node] in parents_tried:
                    count["tried"] += 1
                    count["accepted"] += node in path
                    if kind not in seen:
                        seen.add(kind)
                        count["steps"] += 1
    return {kind: DraftCount(**{name: count[name] for name in ("drafted", "tried", "accepted", "steps")}) for kind, count in counts.items()}


def told(counts):
    """What `DraftCounts` says of the same kinds."""
    found = {("total",): counts.total()} if counts.total().drafted else {}
    found |= {("depth", depth): count for depth, count in counts.by_depth().items()}
    found |= {("rank", rank): count for rank, count in counts.by_rank().items()}
    return found | {("drafter", name): count for name, count in counts.by_drafter().items()}


def random_step(generator):
    nodes = generator.randint(1, 12)
    parents = [-1] + [generator.randrange(node) for node in range(1, nodes)]
    origins = [[]] + [
        [Origin(name, generator.randrange(4), 0) for name in generator.sample("abc", generator.randint(1, 3))] for _ in parents[1:]
    ]
    path = [0]
    while (children := [node for node in range(nodes) if parents[node] == path[-1]]) and generator.random() < 0.7:
        path.append(generator.choice(children))
    emitted = generator.randint(1, len(path))  # the last token is the bonus token, if the request does not end before it
    return TokenTree(tokens=list(range(nodes)), parents=parents, origins=origins), path, emitted


def test_counts_of_random_trees():
    generator = random.Random(5)
    total, all_steps = DraftCounts(), []
    for _ in range(40):
        counts, steps = DraftCounts(), [random_step(generator) for _ in range(generator.randint(1, 6))]
        for tree, path, emitted in steps:
            counts.record(tree, path, emitted)
        cut = [(tree, path[: emitted + 1], emitted) for tree, path, emitted in steps]
        assert told(counts) == naive(cut)
        total.add(counts)
        all_steps += cut
    assert told(total) == naive(all_steps)
    by_one = total.by_depth("a")
    assert sum(count.drafted for count in by_one.values()) == total.total("a").drafted == total.by_drafter()["a"].drafted
    assert sum(count.accepted for count in total.by_rank("a").values()) == total.total("a").accepted
    assert total.by_depth("nobody") == {} and total.total("nobody") == DraftCount()


def test_nodes_of_several_drafters_count_for_each_and_once_in_total():
    origins = [[], [Origin("a", 1, 0), Origin("b", 0, 2)], [Origin("a", 0, 0)]]
    counts = DraftCounts()
    counts.record(TokenTree(tokens=[9, 5, 6], parents=[-1, 0, 0], origins=origins), [0, 1], 2)
    assert counts.total() == DraftCount(drafted=2, tried=2, accepted=1, steps=1)
    assert counts.by_drafter() == {"a": DraftCount(2, 2, 1, 1), "b": DraftCount(1, 1, 1, 1)}
    assert counts.by_rank() == {0: DraftCount(2, 2, 1, 1)} and counts.by_rank("a") == {0: DraftCount(1, 1, 0, 1), 1: DraftCount(1, 1, 1, 1)}


def test_rates_of_nothing_are_0():  # case 28
    nothing = DraftCounts().total()
    assert nothing == DraftCount() and nothing.acceptance_rate == nothing.acceptance_if_tried == nothing.accepted_per_step == 0
    assert DraftCount(8, 4, 2, 4)[:2] == (8, 4) and DraftCount(8, 4, 2, 4).acceptance_rate == 0.25
    assert DraftCount(8, 4, 2, 4).acceptance_if_tried == DraftCount(8, 4, 2, 4).accepted_per_step == 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("tree", TREES)
def test_counts_match_what_was_emitted(tree, temperature, time_is_free):  # case 28
    records = {}
    serving = engine(TREES[tree], observer=lambda record: records.setdefault(record.request_id, []).append(record), eos_token_ids=[7])
    params = [SamplingParams(max_tokens=tokens, temperature=temperature, seed=4, ignore_eos=tokens == 29) for tokens in (40, 29, 50)]
    outputs = {}
    for prompt, its_params in zip(PROMPTS, params, strict=True):
        serving.add(prompt, its_params)
    while serving.has_work:
        outputs |= {chunk.request_id: chunk.output for chunk in serving.step() if chunk.output is not None}
    for request_id, output in outputs.items():
        stats = output.stats
        steps = [(record.tree, record.path, len(record.token_ids)) for record in records[request_id]]
        assert told(stats.acceptance) == naive(steps)
        total = stats.acceptance.total()
        assert (total.drafted, total.accepted) == (stats.drafted, stats.accepted)
        assert 0 <= total.accepted <= total.tried <= total.drafted and 0 <= stats.acceptance_rate <= 1
        bonus = stats.new_tokens - stats.accepted
        assert stats.new_tokens == len(output.token_ids) and stats.steps - 1 <= bonus <= stats.steps == len(records[request_id])
        assert 0 < stats.draft_s + stats.forward_s <= stats.decode_s + 0.01
        by_depth = json.loads(json.dumps(stats.to_json()))["acceptance"]["by_depth"]
        assert [row["depth"] for row in by_depth] == list(stats.acceptance.by_depth())
    sums = serving.statistics()
    assert told(sums.acceptance) == naive([(one.tree, one.path, len(one.token_ids)) for of in records.values() for one in of])
    assert (sums.finished, sums.aborted, sums.failed, sums.running, sums.waiting, sums.kv_tokens) == (3, 0, 0, 0, 0, 0)
    each = [output.stats for output in outputs.values()]
    assert sums.new_tokens == sum(stats.new_tokens for stats in each) and sums.request_steps == sum(stats.steps for stats in each)
    assert (sums.drafted, sums.accepted) == (sum(stats.drafted for stats in each), sum(stats.accepted for stats in each))
    assert sums.tokens_per_step == sums.new_tokens / sums.request_steps and 0 <= sums.acceptance_rate < 1
    assert sums.accepted > 0
    assert (sums.adaptation is not None) == (tree == "adaptive")


def test_a_request_that_ends_in_mid_block_counts_what_it_emitted():  # case 28
    text = engine(PLAIN, drafters=[]).generate([[3]], SamplingParams(max_tokens=20))[0].token_ids
    serving = Engine(toy(), drafters=[ToyDrafter(toy())], tree=TreeSpec(widths=(2, 2, 1)), max_len=128, eos_token_ids=[text[6]])
    stats = serving.generate([[3]], SamplingParams(max_tokens=20))[0].stats
    end = text.index(text[6]) + 1
    assert stats.new_tokens == end and stats.steps == 1 + -(-(end - 1) // 4)
    counts = stats.acceptance.by_depth()
    assert sum(count.accepted for count in counts.values()) == stats.accepted
    in_last = (end - 2) % 4 + 1  # tokens that the last step emitted
    assert [counts[depth].steps for depth in (1, 2, 3)] == [stats.steps - 1 - (depth > in_last) for depth in (1, 2, 3)]
    assert all(count.accepted == count.steps for count in counts.values()), "the model as its own draft"


def test_requests_that_run_wait_or_were_aborted_count():
    serving = engine(max_batch=1)
    ids = [serving.add(prompt, SamplingParams(max_tokens=30)) for prompt in PROMPTS]
    emitted = sum(len(chunk.token_ids) for _ in range(4) for chunk in serving.step())
    seen = serving.statistics()
    assert (seen.running, seen.waiting, seen.finished, seen.new_tokens, seen.profile.steps) == (1, 2, 0, emitted, 4)
    assert seen.kv_tokens == emitted + len(PROMPTS[0]) - 1 < seen.kv_capacity
    for request_id in ids:
        serving.abort(request_id)
    serving.abort(ids[0])
    after = serving.statistics()
    assert (after.running, after.waiting, after.finished, after.aborted, after.kv_tokens) == (0, 0, 0, 3, 0)
    assert told(after.acceptance) == told(seen.acceptance) and after.new_tokens == emitted


def test_preemptions_count_and_are_told():
    serving = engine(PLAIN, drafters=[], max_len=64, block_size=4, num_blocks=16)
    before = serving.statistics()
    assert (before.preemptions, before.kv_blocks_used, before.kv_blocks, before.kv_capacity) == (0, 0, 16, 64)
    outputs = serving.generate(PROMPTS, SamplingParams(max_tokens=30))
    seen = serving.statistics()
    assert seen.preemptions >= 2 and seen.new_tokens == 90 and seen.request_steps == 90 == sum(output.stats.steps for output in outputs)
    assert f"0 waiting, {seen.preemptions} preempted; " in describe_window(before, seen, 1.0)
    assert "preempted" not in describe_window(seen, seen, 1.0)
    ids = [serving.add(prompt, SamplingParams(max_tokens=30)) for prompt in PROMPTS[:2]]
    serving.step()
    assert serving.statistics().kv_blocks_used == 1 + 6, "of texts of 1 and 20 tokens with their next roots"
    for request_id in ids:
        serving.abort(request_id)


def test_requests_that_fail_count():
    class Spoiled(ToyModel):
        def forward(self, batch, kv):
            return super().forward(batch, kv) * (1 if self.num_passes < 3 else float("nan"))

    serving = Engine(Spoiled(vocab_size=24), drafters=drafters(), tree=TREES["wide"], max_len=128)
    assert [output.finish_reason for output in serving.generate(PROMPTS, SamplingParams(max_tokens=30))] == ["error"] * 3
    seen = serving.statistics()
    assert (seen.finished, seen.aborted, seen.failed) == (0, 0, 3) and seen.new_tokens > 0


def test_static_trees_teach_as_adaptive_ones_do_and_both_begin_with_what_is_known():
    known = AcceptanceTable()
    static = engine(acceptance=known)
    static.generate(PROMPTS, SamplingParams(max_tokens=40))
    assert static.acceptance is known and sorted(known.names()) == ["ngram", "toy"]
    tried = {name: sum(row[1] for row in known.of(name).rows()) for name in known.names()}
    assert all(count > 3 for count in tried.values())
    adaptive = engine(TREES["adaptive"], acceptance=known)
    assert adaptive.acceptance is known and engine(TREES["adaptive"]).acceptance.names() == []
    adaptive.generate(PROMPTS, SamplingParams(max_tokens=40))
    state = adaptive.statistics().adaptation
    assert set(state.drafters) == {"toy", "ngram"} and state.tokens_per_s > 0 and min(state.pass_s.values()) > 0
    assert all(0 <= one.share_on <= 1 and one.proposal_s > 0 for one in state.drafters.values())
    assert sum(row[1] for row in known.of("toy").rows()) > tried["toy"]


def test_the_profile_begins_anew_and_the_statistics_do_not():
    serving = engine()
    serving.generate(PROMPTS, SamplingParams(max_tokens=5))
    before = serving.statistics().profile
    serving.reset_profile()
    assert serving.profile().steps == 0 and serving.profile().total_s == 0
    serving.generate(PROMPTS, SamplingParams(max_tokens=5))
    later, profile = serving.statistics().profile, serving.profile()
    assert later.steps == before.steps + profile.steps and set(later.seconds) == set(PHASES)
    assert later.total_s == pytest.approx(before.total_s + profile.total_s)


def test_a_clock_knows_the_time_to_its_last_lap():
    clock = PhaseClock()
    clock.start()
    laps = clock.lap("draft") + clock.lap("forward")
    assert clock.lapped == laps <= clock.elapsed()


def log_of(caplog, every_s, level=logging.INFO, **options):
    caplog.clear()
    with caplog.at_level(level, logger="flexspec"):
        serving = engine(log_every_s=every_s, **options)
        serving.generate(PROMPTS, SamplingParams(max_tokens=30))
    return [record.getMessage() for record in caplog.records], serving


def test_lines_in_the_log_as_often_as_asked_for(caplog):
    lines, serving = log_of(caplog, 1e-9)
    assert len(lines) == serving.statistics().profile.steps
    for part in ("3 running, 0 waiting", "tokens/s", "tokens/step", "drafts accepted", "KV ", *(f"{phase} " for phase in PHASES)):
        assert part in lines[3], part
    assert all(record.levelno == logging.INFO and record.name == "flexspec" for record in caplog.records)
    first = re.search(r"by depth 1 (\d+)%.*by rank 0 (\d+)%.*by drafter (\w+) (\d+)%", "\n".join(lines))
    assert first is not None, "acceptance by depth, rank and drafter"
    before, now = engine(), engine()
    before.generate(PROMPTS, SamplingParams(max_tokens=10))
    counts = before.statistics().acceptance.by_depth()[1]
    line = describe_window(None, before.statistics(), 1.0)
    assert f"by depth 1 {counts.acceptance_rate:.0%}" in line
    assert "by depth" not in describe_window(before.statistics(), before.statistics(), 1.0), "nothing was drafted in between"
    assert "by depth" not in describe_window(None, now.statistics(), 1.0)
    tokens = sum(float(line.split("; ")[2].split(" of ")[0]) for line in lines)
    assert tokens == serving.statistics().accepted, "a line tells of the steps since the one before"
    assert log_of(caplog, 1e6)[0] == log_of(caplog, None)[0] == log_of(caplog, 1e-9, logging.WARNING)[0] == []
    assert not logging.getLogger("flexspec").handlers, "where lines go is the user's to say"


def test_lines_count_the_time_of_steps_and_look_only_when_due(caplog):
    serving, looks = engine(), []

    def look():
        looks.append(1)
        return serving.statistics()

    log = PeriodicLog(2.0, look)
    with caplog.at_level(logging.INFO, logger="flexspec"):
        for _ in range(7):
            log.step(500_000_000)
    assert len(looks) == len(caplog.records) == 1
    log.step(500_000_000)
    assert len(looks) == 2


@pytest.mark.parametrize("every_s", [0, -1, True, "10", float("nan"), float("inf"), 10**400])
def test_no_other_interval_is_allowed(every_s):
    with pytest.raises(UsageError, match="log_every_s="):
        engine(log_every_s=every_s)
