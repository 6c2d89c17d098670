import pytest

from engine_reference import plain, run_checked
from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.engine import Engine
from flexspec.tree_shape import TreeSpec
from toy_drafter import ToyDrafter
from toy_model import ToyModel

PROMPTS = [[3], list(range(20)), [5, 6, 7] * 30, [1, 2]]
TREES = [(4,), (1, 1, 1), (1,), (2, 2, 1)]
DRAFTS = {"self": {}, "half": {"noise": 0.5}, "unrelated": {"seed": 99}}


def toy(**changes):
    return ToyModel(**{"vocab_size": 24, "seed": 1, "max_pass_tokens": 64} | changes)


def engine_of(model, *, draft=None, widths=(), **options):
    drafters = [] if draft is None else [ToyDrafter(draft)]
    return Engine(
        model,
        drafters=drafters,
        tree=TreeSpec(widths=widths),
        **({"max_len": 256, "max_batch": 4} | options),
    )


def test_plain_output_is_that_of_a_loop_without_cache_or_batch():
    model, params = toy(), SamplingParams(max_tokens=40)
    outputs = engine_of(model).generate(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == plain(model, prompt, params)
        assert output.prompt_token_ids == prompt and output.finish_reason == "length" and output.text == ""
        assert output.stats.steps == output.stats.new_tokens == 40 and output.stats.tokens_per_step == 1


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("widths", TREES)
def test_speculation_changes_nothing(widths, draft, temperature):  # cases 1, 5, 34
    model, params = toy(), SamplingParams(max_tokens=40, temperature=temperature, seed=11)
    outputs = engine_of(model, draft=toy(**DRAFTS[draft]), widths=widths).generate(PROMPTS, params)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert output.token_ids == plain(model, prompt, params)
    drafted, accepted = sum(output.stats.drafted for output in outputs), sum(output.stats.accepted for output in outputs)
    assert 0 < accepted < drafted or (widths == (1,) * len(widths) and draft == "self")


@pytest.mark.parametrize("widths", [(1, 1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_model_as_its_own_draft_accepts_the_full_depth(widths, temperature):  # case 33
    params = SamplingParams(max_tokens=200, temperature=temperature, seed=5)
    engine = engine_of(toy(), draft=toy(), widths=widths, max_len=400)
    for output in engine.generate(PROMPTS[:3], params):
        depth = len(widths)
        assert output.stats.steps == 1 + -(-199 // (depth + 1))
        assert output.stats.accepted >= 199 * depth // (depth + 1) - 1


@pytest.mark.parametrize("widths", [(1, 1, 1), (2, 2, 1), (3,), (1, 3)])
def test_the_cache_is_a_linear_prefill_of_the_text_after_every_step(widths):  # case 6
    model, params = toy(), SamplingParams(max_tokens=30, temperature=0.8, seed=3)
    engine = engine_of(model, draft=toy(noise=0.4), widths=widths, pass_tokens=40)
    prompts = {engine.add(prompt, params): prompt for prompt in PROMPTS}
    texts = run_checked(engine, prompts)
    assert texts == {request_id: plain(model, prompt, params) for request_id, prompt in prompts.items()}
    assert not engine.cache.request_ids and engine.cache.num_free_blocks == engine.cache.storage.num_blocks


@pytest.mark.parametrize("pass_tokens", [4, 5, 17, 64])
def test_the_budget_of_a_pass_changes_nothing(pass_tokens):
    model, params = toy(), SamplingParams(max_tokens=20, temperature=0.7, seed=8)
    engine = engine_of(model, draft=toy(noise=0.5), widths=(2, 1), pass_tokens=pass_tokens)
    for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, params), strict=True):
        assert output.token_ids == plain(model, prompt, params)


def test_requests_of_unlike_parameters_are_each_as_if_alone():  # case 19
    model = toy()
    params = [
        SamplingParams(max_tokens=25, temperature=temperature, seed=seed, top_p=top_p, top_k=top_k)
        for temperature, seed, top_p, top_k in [
            (0, 1, 1, 0),
            (1e-6, 2, 1, 0),
            (0.7, 3, 0.9, 0),
            (1.3, 4, 1, 5),
            (0.7, 3, 0.9, 0),
            (2.0, 6, 0.5, 3),
        ]
    ]
    prompts = [PROMPTS[place % 4] for place in range(6)]
    together = engine_of(model, draft=toy(noise=0.3), widths=(2, 1), max_batch=3).generate(prompts, params)
    for prompt, its_params, output in zip(prompts, params, together, strict=True):
        assert output.token_ids == plain(model, prompt, its_params)


def test_seeds():  # case 18
    engine = engine_of(toy())
    seeded = [SamplingParams(max_tokens=20, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (output.token_ids for output in engine.generate([[1]] * 3, seeded))
    assert first == again != other
    unseeded = engine.generate([[1]] * 8, SamplingParams(max_tokens=20, temperature=1.0))
    assert len({tuple(output.token_ids) for output in unseeded}) == 8


def test_more_prompts_than_the_batch_queue_and_come_back_in_order():
    model, params = toy(), SamplingParams(max_tokens=9)
    prompts = [[token] for token in range(11)]
    outputs = engine_of(model, max_batch=2).generate(prompts, params)
    assert [output.token_ids for output in outputs] == [plain(model, prompt, params) for prompt in prompts]


def test_a_long_prompt_does_not_stall_decoding():
    params = SamplingParams(max_tokens=60)
    engine = engine_of(toy(), draft=toy(noise=0.3), widths=(2, 2, 1), pass_tokens=16, max_batch=2, block_size=None)
    decoding = engine.add([1], params)
    engine.step()
    engine.add([2] * 100, params)
    steps = 0
    while True:
        emitted = {chunk.request_id for chunk in engine.step()}
        steps += 1
        assert decoding in emitted
        if len(emitted) == 2:
            break
    assert 6 < steps <= 25, "the prompt gets at least a quarter of each pass"


def test_streams_and_generate_share_steps():
    model, params = toy(), SamplingParams(max_tokens=15)
    engine = engine_of(model, draft=toy(noise=0.5), widths=(2, 1))
    one, two = engine.stream([1], params), engine.stream([2], params)
    tokens = {1: [], 2: []}
    tokens[1] += next(one).token_ids
    tokens[2] += next(two).token_ids
    assert engine.generate([[3]], params)[0].token_ids == plain(model, [3], params)
    for prompt, stream in ((1, one), (2, two)):
        for chunk in stream:
            tokens[prompt] += chunk.token_ids
        assert chunk.output is not None and chunk.output.token_ids == tokens[prompt] == plain(model, [prompt], params)


def test_closing_a_stream_frees_what_it_held():
    engine = engine_of(toy(), draft=toy(), widths=(1,))
    stream = engine.stream([1], SamplingParams(max_tokens=15))
    next(stream)
    next(stream)
    stream.close()
    assert not engine.has_work and not engine.cache.request_ids


def test_abort_keeps_what_was_produced():
    model, drafter = toy(), ToyDrafter(toy())
    engine = Engine(model, drafters=[drafter], tree=TreeSpec(widths=(1,)), max_len=64, max_batch=1)
    running, waiting = (engine.add([token], SamplingParams(max_tokens=15)) for token in (1, 2))
    engine.step()
    engine.step()
    output = engine.abort(running)
    assert output is not None and output.finish_reason == "abort"
    assert output.token_ids == plain(model, [1], SamplingParams(max_tokens=3))
    assert drafter.released == [running]
    output = engine.abort(waiting)
    assert output is not None and output.token_ids == [] and not engine.has_work
    assert engine.abort(running) is None


@pytest.mark.parametrize(
    ("prompts", "params", "message"),
    [
        ([[1], []], SamplingParams(), "prompt is empty"),
        ([[1], [1] * 256], SamplingParams(), "256 tokens is too long: at most 255"),
        ([[1], [24]], SamplingParams(), "token id 24 .* 0 to 23"),
        ([[1], [-1]], SamplingParams(), "token id -1"),
        ([[1], [1]], SamplingParams(stop="a"), "stop=.* tokenizer"),
        ([[1], [1]], [SamplingParams()] * 3, "3 sampling parameters for 2 prompts"),
    ],
)
def test_bad_requests_are_refused_before_any_starts(prompts, params, message):
    engine = engine_of(toy())
    with pytest.raises(UsageError, match=message):
        engine.generate(prompts, params)
    assert not engine.has_work


def test_a_verifier_that_does_not_fit_is_refused_before_any_prompt_starts():
    engine = engine_of(toy(), verifier_name="greedy")
    with pytest.raises(UsageError, match="greedy"):
        engine.generate([[1], [2]], [SamplingParams(), SamplingParams(temperature=1.0)])
    with pytest.raises(UsageError, match="greedy"):
        engine.stream([1], SamplingParams(temperature=1.0))
    assert not engine.has_work


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pass_tokens": 65}, "pass_tokens=65 .* 1 to 64"),
        ({"max_batch": 65}, "max_batch=65 .* 1 to 64"),
        ({"max_batch": 0}, "max_batch=0"),
        ({"max_len": 1}, "max_len=1 "),
        ({"max_len": 101}, "max_len=101 .* 2 to 100"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        engine_of(toy(max_positions=100), **({"max_len": 100} | options))


def test_padding_ids_are_never_emitted():  # case 13
    model, params = toy(), SamplingParams(max_tokens=60, temperature=3.0, seed=1)
    output = engine_of(model, draft=toy(), widths=(3, 1), vocab_limit=16).generate([[1]], params)[0]
    assert max(output.token_ids) < 16


def test_the_profile_tells_the_phases_apart():
    engine = engine_of(toy(), draft=toy(), widths=(2,))
    engine.generate(PROMPTS, SamplingParams(max_tokens=5))
    profile = engine.profile()
    assert profile.steps > 0 and all(seconds > 0 for seconds in profile.seconds.values())
    assert 0 < profile.bookkeeping_share(draft_is_bookkeeping=False) < profile.bookkeeping_share(draft_is_bookkeeping=True) < 1
    assert sum(profile.per_step_ms().values()) == pytest.approx(1e3 * profile.total_s / profile.steps)
    engine.reset_profile()
    assert engine.profile().steps == 0 and engine.profile().total_s == 0


def test_times_of_a_request():
    stats = engine_of(toy()).generate([[1]], SamplingParams(max_tokens=5))[0].stats
    assert min(stats.queued_s, stats.prefill_s, stats.decode_s, stats.draft_s, stats.verify_s) > 0
    assert stats.decode_tokens_per_s == pytest.approx(4 / stats.decode_s)
