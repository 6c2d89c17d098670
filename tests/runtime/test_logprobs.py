"""Log probabilities of new tokens and of prompts, and requests that can't go on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime import decision
from flexspec.runtime.engine import Engine
from flexspec.runtime.logprobs import TokenLogprobs, token_logprobs
from flexspec.runtime.sampling import NonFiniteLogitsError
from flexspec.runtime.scheduler import PROMPT_LOGPROB_TOKENS
from flexspec.runtime.token_tree import TokenTree
from flexspec.tree_shape import TreeLimits, TreeSpec
from toy_drafter import FixedDrafter, ToyDrafter
from toy_model import ToyModel
from toy_tokenizer import letters

VOCAB = 24
PROMPT = [3, 1, 7]
SHARP = 2.5


def by_definition(logits, token, top, vocab_limit):
    """The entry of `token`: log-softmax, then a full sort."""
    values = np.asarray(logits, dtype=np.float32).astype(np.float64)[:vocab_limit]
    logprobs = values - np.logaddexp.reduce(values)
    order = sorted(range(len(values)), key=lambda place: (-values[place], place))[:top]
    own = logprobs[token] if token < vocab_limit else -math.inf
    return own, {place: logprobs[place] for place in order if values[place] > -math.inf}


def check(entry: TokenLogprobs, logits, token, top, vocab_limit=VOCAB):
    own, likeliest = by_definition(logits, token, top, vocab_limit)
    assert entry.token_id == token
    assert entry.logprob == own or entry.logprob == pytest.approx(own, abs=1e-9)
    assert list(entry.top) == list(likeliest) and list(entry.top.values()) == pytest.approx(list(likeliest.values()), abs=1e-9)
    assert token not in entry.top or entry.top[token] == entry.logprob


@given(st.data())
def test_an_entry_is_the_log_softmax_and_ties_go_to_the_lowest_id(data):
    vocab = data.draw(st.integers(1, 40))
    value = st.sampled_from([-math.inf, -1e30, -3.0, -1.0, 0.0, 2.0, 2.0, 80.0])
    logits = data.draw(st.lists(value, min_size=vocab, max_size=vocab))
    limit = data.draw(st.integers(1, vocab))
    logits[data.draw(st.integers(0, limit - 1))] = 1.0
    token, top = data.draw(st.integers(0, vocab - 1)), data.draw(st.integers(0, vocab + 3))
    (entry,) = token_logprobs([torch.tensor(logits)], [token], top=top, vocab_limit=limit)
    check(entry, logits, token, top, limit)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad):
    with pytest.raises(NonFiniteLogitsError, match="of 3 logits"):
        token_logprobs([torch.tensor([0.0, bad, 1.0])], [0], top=1, vocab_limit=3)
    with pytest.raises(NonFiniteLogitsError):
        token_logprobs([torch.tensor([-math.inf] * 3)], [0], top=1, vocab_limit=3)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_counts_that_are_not_allowed(name, value):
    with pytest.raises(UsageError, match=f"{name}=.*None .* 0 or more"):
        SamplingParams(**{name: value})


def toy(**changes):
    return ToyModel(**{"vocab_size": VOCAB, "seed": 4, "sharpness": SHARP, "max_pass_tokens": 64} | changes)


def engine_of(kind="tree", **options):
    drafters, tree = {
        "plain": ([], TreeSpec(widths=())),
        "tree": ([ToyDrafter(toy(noise=0.4))], TreeSpec(widths=(2, 2, 1))),
        "wide": ([ToyDrafter(toy(noise=0.6))], TreeSpec(widths=(4, 2))),
        "merged": ([ToyDrafter(toy(noise=0.4)), named(ToyDrafter(toy(noise=0.5, noise_seed=9)), "other")], TreeSpec(widths=(2, 1, 1))),
        "adaptive": ([ToyDrafter(toy(noise=0.3))], TreeLimits(depth=4, branch=2, budget=8)),
    }[kind]
    return Engine(toy(), drafters=drafters, tree=tree, **({"max_len": 256, "max_batch": 4} | options))


def named(drafter, name):
    drafter.name = name
    return drafter


def check_output(output, *, top, vocab_limit=VOCAB):
    """Every entry is that of its own token, after the text before it."""
    assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
    text = list(output.prompt_token_ids)
    for entry, token in zip(output.logprobs, output.token_ids, strict=True):
        check(entry, toy().logits_of(text), token, top, vocab_limit)
        text.append(token)


PARAMS = {
    "greedy": SamplingParams(max_tokens=30, logprobs=5),
    "sampled": SamplingParams(max_tokens=30, logprobs=5, temperature=0.9, seed=3, top_p=0.95),
    "token alone": SamplingParams(max_tokens=30, logprobs=0, temperature=1.2, seed=3),
    "whole vocabulary": SamplingParams(max_tokens=9, logprobs=10**6),
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("kind", ["plain", "tree", "wide", "merged", "adaptive"])
def test_every_new_token_has_the_entry_of_its_own_place(kind, params, time_is_free):  # case 17
    prompts = [PROMPT, [5], list(range(20))]
    outputs = engine_of(kind).generate(prompts, params)
    for output, plain in zip(outputs, engine_of("plain").generate(prompts, params), strict=True):
        check_output(output, top=params.logprobs)
        assert output.token_ids == plain.token_ids and output.logprobs == plain.logprobs
    accepted, drafted = (sum(getattr(output.stats, name) for output in outputs) for name in ("accepted", "drafted"))
    assert kind == "plain" or 0 < accepted < drafted


def test_raw_logits_whatever_changes_them():
    params = SamplingParams(max_tokens=25, logprobs=3, temperature=0.5, seed=1, top_k=4, min_p=0.05)
    changed = SamplingParams(
        max_tokens=25, logprobs=3, temperature=0.5, seed=1, presence_penalty=1.0, repetition_penalty=1.5, logit_bias={3: -100, 5: 4}
    )

    def in_place(tokens, logits):
        logits[::2] = -math.inf
        return logits

    processed = SamplingParams(max_tokens=25, logprobs=3, logits_processors=[in_place])
    for output in engine_of().generate([PROMPT] * 3, [params, changed, processed]):
        check_output(output, top=3)


def test_padding_ids_are_left_out():  # case 13
    params = SamplingParams(max_tokens=20, logprobs=30, prompt_logprobs=30, temperature=1.0, seed=1)
    (output,) = engine_of(vocab_limit=16).generate([[3, 20, 1]], params)
    check_output(output, top=30, vocab_limit=16)
    assert all(len(entry.top) == 16 for entry in output.logprobs)
    assert [entry and entry.logprob == -math.inf for entry in output.prompt_logprobs] == [None, True, False]


def wrong_then_right(model):
    """A tree with rejected siblings between the nodes of the path: 1 and 2 wrong, 3 right, 4 its wrong child, 5 its right one."""

    def make(tokens):
        first = int(np.argmax(model.logits_of(tokens)))
        second = int(np.argmax(model.logits_of([*tokens, first])))
        wrong = [(first + 1) % VOCAB, (first + 2) % VOCAB, (second + 1) % VOCAB]
        return TokenTree(tokens=[tokens[-1], wrong[0], wrong[1], first, wrong[2], second], parents=[-1, 0, 0, 0, 3, 3])

    return FixedDrafter(make)


def siblings_engine():
    return Engine(toy(), drafters=[wrong_then_right(toy())], tree=TreeSpec(widths=(3, 2)), max_len=64, max_batch=1)


def test_rejected_siblings_between_the_nodes_of_the_path():
    (output,) = siblings_engine().generate([PROMPT], SamplingParams(max_tokens=19, logprobs=2))
    assert output.stats.steps == 7 and output.stats.accepted == 12
    check_output(output, top=2)


@pytest.mark.parametrize("rows", [lambda path: range(len(path)), lambda path: [*path[1:], path[-1]], lambda path: [0] * len(path)])
def test_of_the_tests_entries_of_other_nodes_are_noticed(rows, monkeypatch):
    monkeypatch.setattr(decision, "_path_rows", lambda logits, path: [logits[node] for node in rows(path)])
    (output,) = siblings_engine().generate([PROMPT], SamplingParams(max_tokens=19, logprobs=2))
    with pytest.raises(AssertionError):
        check_output(output, top=2)


def free_text(count=30):
    return engine_of("plain").generate([PROMPT], SamplingParams(max_tokens=count))[0].token_ids


@pytest.mark.parametrize(("kind", "streaming"), [("plain", True), ("tree", False), ("tree", True), ("merged", False)])
@pytest.mark.parametrize("end", ["eos", "stop token", "stop string", "length", "capacity"])
def test_there_are_as_many_entries_as_tokens_wherever_the_request_ends(end, streaming, kind):  # cases 9, 17
    text = free_text()
    for place in range(4, 8):
        last = text[place]
        if last in text[:place]:
            continue
        tokenizer = letters(VOCAB)
        stop = "".join(tokenizer.decode([token], skip_special_tokens=False) for token in text[place - 1 : place + 1])
        options = {
            "eos": {"eos_token_ids": [last]},
            "stop string": {"tokenizer": tokenizer},
            "capacity": {"max_len": len(PROMPT) + place + 1},
        }.get(end, {})
        given = {"stop token": {"stop_token_ids": [last]}, "stop string": {"stop": stop}, "length": {"max_tokens": place + 1}}.get(end, {})
        params = SamplingParams(**({"max_tokens": 30, "logprobs": 1} | given))
        engine = engine_of(kind, **options)
        if streaming:
            chunks = list(engine.stream(PROMPT, params))
            output = chunks[-1].output
            assert all(len(chunk.logprobs) == len(chunk.token_ids) for chunk in chunks)
            assert [entry for chunk in chunks for entry in chunk.logprobs] == output.logprobs
        else:
            (output,) = engine.generate([PROMPT], params)
        assert output.token_ids == text[: place + 1] and output.finish_reason == ("length" if end in ("length", "capacity") else "stop")
        check_output(output, top=1)


def test_an_aborted_request_keeps_its_entries():
    engine = engine_of()
    running, waiting = (engine.add(PROMPT, SamplingParams(logprobs=1, prompt_logprobs=0)) for _ in range(2))
    engine.step()
    chunk = engine.step()[0]
    assert len(chunk.logprobs) == len(chunk.token_ids) > 0
    output = engine.abort(running)
    check_output(output, top=1)
    assert output.finish_reason == "abort" and len(output.token_ids) > 1 and len(output.prompt_logprobs) == len(PROMPT)
    engine.abort(waiting)


def test_each_of_several_completions_has_its_own_entries():
    params = SamplingParams(max_tokens=10, temperature=1.0, seed=5, n=3, logprobs=2, prompt_logprobs=1)
    outputs = engine_of().generate([PROMPT], params)
    assert len({tuple(output.token_ids) for output in outputs}) == 3
    for output in outputs:
        check_output(output, top=2)
        check_prompt(output, top=1)


def test_only_those_that_ask_get_entries():
    asks = [SamplingParams(max_tokens=12, logprobs=2), SamplingParams(max_tokens=12), SamplingParams(max_tokens=12, prompt_logprobs=1)]
    both, none, prompt = engine_of().generate([PROMPT] * 3, asks)
    assert both.token_ids == none.token_ids == prompt.token_ids
    check_output(both, top=2)
    assert none.logprobs is None and none.prompt_logprobs is None and both.prompt_logprobs is None and prompt.logprobs is None
    assert len(prompt.prompt_logprobs) == len(PROMPT)
    chunks = list(engine_of().stream(PROMPT, asks[1]))
    assert all(chunk.logprobs is None for chunk in chunks)


def check_prompt(output, *, top):
    prompt = output.prompt_token_ids
    assert len(output.prompt_logprobs) == len(prompt) and output.prompt_logprobs[0] is None
    for place in range(1, len(prompt)):
        check(output.prompt_logprobs[place], toy().logits_of(prompt[:place]), prompt[place], top)


@pytest.mark.parametrize("kind", ["plain", "tree"])
@pytest.mark.parametrize("pass_tokens", [4, 7, 64])
def test_entries_of_prompts_in_chunks_smaller_than_them(pass_tokens, kind):
    random = np.random.default_rng(0)
    prompts = [random.integers(VOCAB, size=size).tolist() for size in (1, 2, 30, 41)]
    params = [SamplingParams(max_tokens=6, prompt_logprobs=top, logprobs=1) for top in (0, 1, 3, 5)]
    params[2] = SamplingParams(max_tokens=6, logprobs=1)
    outputs = engine_of(kind, pass_tokens=pass_tokens).generate(prompts, params)
    for output, one in zip(outputs, params, strict=True):
        check_output(output, top=1)
        if one.prompt_logprobs is not None:
            check_prompt(output, top=one.prompt_logprobs)
    assert outputs[2].prompt_logprobs is None


def test_a_step_puts_out_few_rows_for_prompts():
    rows = []

    class Counted(ToyModel):
        def forward(self, batch, kv):
            rows.append(len(batch.output_rows))
            return super().forward(batch, kv)

    model = Counted(vocab_size=VOCAB, seed=4, sharpness=SHARP, max_pass_tokens=512)
    engine = Engine(model, max_len=512, max_batch=3)
    params = [
        SamplingParams(max_tokens=1, prompt_logprobs=0),
        SamplingParams(max_tokens=1),
        SamplingParams(max_tokens=1, prompt_logprobs=0),
    ]
    outputs = engine.generate([[1, 2] * 90, [3] * 300, [4, 5] * 20], params)
    assert rows[0] == PROMPT_LOGPROB_TOKENS + 1 and max(rows) <= PROMPT_LOGPROB_TOKENS + 3 and len(rows) == 2
    for output in (outputs[0], outputs[2]):
        check_prompt(output, top=0)
