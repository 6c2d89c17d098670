"""What `flexspec.compile` and what it returns promise."""

import json

import pytest
import torch

import flexspec
from compile_once import compiled, greedy, model, prompt, recorded, reference, unrelated, with_eos
from flexspec import GenerationInterrupted, SamplingParams, Strategy, UsageError, load_strategy
from flexspec.tree_shape import PLAIN, TreeSpec
from tiny_models import greedy_reference, tiny, tiny_tokenizer

SHORT = SamplingParams(max_tokens=8)


def snapshot(module):
    weights = {name: (value.clone(), value.data_ptr()) for name, value in module.state_dict().items()}
    return weights, repr(module), module.config.to_dict(), module.training


def test_compile_leaves_the_module_as_it_is_and_takes_it_as_its_own_draft_model():
    module = tiny("qwen2", eos_token_id=5).train()
    weights, structure, config, training = snapshot(module)
    llm = compiled(module, [module, "prune:1"], tree=[2, 1], dtype="bfloat16")
    llm.generate(list(prompt(9)), SHORT)
    after, structure_after, config_after, training_after = snapshot(module)
    assert (structure, config, training) == (structure_after, config_after, training_after)
    assert all(torch.equal(value, after[name][0]) and address == after[name][1] for name, (value, address) in weights.items())
    assert greedy_reference(module.eval(), [3], 4)  # and it still runs
    assert llm.plan.strategy.drafters == ("Qwen2ForCausalLM", "prune:1")
    assert repr(llm) == f"LLM(model='Qwen2ForCausalLM', drafters=['Qwen2ForCausalLM', 'prune:1'], tree='{llm.plan.strategy.tree}')"


def test_what_the_package_shows():
    assert set(dir(flexspec)) == {*flexspec.__all__, "__version__"} and flexspec.__version__[0].isdigit()
    assert all(callable(getattr(flexspec, name)) for name in flexspec.__all__)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("family", ["llama", "opt"])
def test_changing_the_module_after_compile_changes_nothing(family, native):
    module = tiny(family, layers=1)
    llm = flexspec.compile(module, [], native=native, max_batch=1)
    expected = llm.generate(list(prompt(9)), SHORT)[0].token_ids
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                tensor.normal_()
    assert llm.generate(list(prompt(9)), SHORT)[0].token_ids == expected


def test_compile_works_under_inference_mode():
    module = tiny("llama", layers=1)
    with torch.inference_mode():
        llm = flexspec.compile(module, [], max_batch=1)
    assert llm.generate(list(prompt(9)), SHORT)[0].token_ids == greedy_reference(module, list(prompt(9)), 8)


def test_dtype_none_is_a_modules_own_and_bfloat16_for_weights_from_a_folder(tmp_path):
    assert compiled(model()).plan.strategy.dtype == "float32"
    assert compiled(tiny("llama", layers=1).to(torch.bfloat16)).plan.llm.model.kv_shape.dtype == torch.bfloat16
    model().save_pretrained(tmp_path)
    for dtype, expected in ((None, "bfloat16"), ("float32", "float32"), (torch.float32, "float32")):
        assert compiled(str(tmp_path), dtype=dtype).plan.strategy.dtype == expected
    assert compiled(tmp_path).plan.strategy.dtype == "bfloat16"


def test_max_len_is_what_the_model_allows():
    assert compiled(model(), max_len=None).plan.strategy.max_len == 512
    assert compiled(model(), max_len=100).plan.strategy.max_len == 100
    unlimited = tiny("llama", layers=1)
    unlimited.config.max_position_embeddings = 0  # as of a config that gives none
    assert flexspec.compile(unlimited, []).plan.strategy.max_len == 4096


@pytest.mark.parametrize("ssms", [[], ["prune:1", "ngram"]])
def test_more_prompts_than_the_batch_holds_queue_and_come_back_in_order(ssms):
    llm = compiled(model(), ssms, max_batch=2, tree=[2, 1])
    lengths = [9, 1, 65, 9, 3, 1, 40]
    params = [SamplingParams(max_tokens=n) for n in (30, 2, 5, 1, 12, 7, 20)]
    outputs = llm.generate([list(prompt(length)) for length in lengths], params)
    for length, its_params, output in zip(lengths, params, outputs, strict=True):
        assert output.prompt_token_ids == list(prompt(length))
        assert output.token_ids == reference(length, its_params.max_tokens)
    assert outputs[-1].stats.queued_s > outputs[0].stats.queued_s


def test_one_prompt_or_many_a_list_comes_back():
    llm = compiled(model(), tokenizer=tiny_tokenizer())
    assert [type(llm.generate(prompts, SHORT)) for prompts in ("hi", ["hi"], [3, 4], [[3, 4]], [], ())] == [list] * 6
    assert [len(llm.generate(prompts, SHORT)) for prompts in ("hi", ["hi", "ho"], [3, 4], [[3], [4]], [], ())] == [1, 2, 1, 2, 0, 0]
    message = [{"role": "user", "content": "hi"}]
    assert len(llm.generate(message, SHORT)) == 1 and len(llm.generate([message, message], SHORT)) == 2
    mixed = llm.generate(["hi", [3, 4], message], SHORT)
    assert [one.token_ids for one in mixed] == [llm.generate(one, SHORT)[0].token_ids for one in ("hi", [3, 4], message)]
    assert len(llm.generate("hi")[0].token_ids) == 128, "greedy, 128 tokens by default"


def test_strings_are_raw_and_chat_messages_templated():
    tokenizer = tiny_tokenizer()
    llm = compiled(model(), tokenizer=tokenizer)
    assert llm.generate("hello", SHORT)[0].prompt_token_ids == tokenizer("hello")["input_ids"]
    messages = [{"role": "user", "content": "hello"}]
    templated = tokenizer("[user]hello\n[assistant]")["input_ids"]
    for output in (*llm.generate(messages, SHORT), *llm.chat(messages, SHORT), *llm.chat([messages, messages], SHORT)):
        assert output.prompt_token_ids == templated == llm.encode(messages)


def test_without_a_tokenizer_prompts_are_token_lists_and_text_is_empty():
    llm = compiled(model())
    assert llm.tokenizer is None
    output = greedy(llm, 9, 8)
    assert output.text == "" and len(output.token_ids) == 8
    assert all(chunk.text == "" for chunk in llm.stream(list(prompt(9)), SHORT))
    for wrong in ("hello", [{"role": "user", "content": "hello"}]):
        with pytest.raises(UsageError, match="no tokenizer"):
            llm.generate(wrong, SHORT)
    with pytest.raises(UsageError, match="stop"):
        llm.generate([3], SamplingParams(stop="x"))


def test_seed_none_is_fresh_for_every_request_and_every_engine():
    params = SamplingParams(max_tokens=12, temperature=1.0)
    outputs = [output for _ in range(2) for output in compiled(model(), ["ngram"]).generate([list(prompt(9))] * 3, params)]
    assert len({tuple(output.token_ids) for output in outputs}) == 6


def test_the_tokenizer_argument_may_be_a_folder(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    llm = compiled(model(), tokenizer=str(tmp_path))
    assert llm.generate("hello", SHORT)[0].prompt_token_ids == tiny_tokenizer()("hello")["input_ids"]


def test_the_end_of_a_draft_models_text_means_nothing():
    tokens = reference(33, 120)
    output = greedy(compiled(model(), [with_eos(model(), *tokens[:5])], tree=[1, 1, 1]), 33, 20)
    assert output.token_ids == tokens[:20] and output.finish_reason == "length"


@pytest.mark.parametrize("params", [SHORT, SamplingParams(max_tokens=30, temperature=0.9, seed=4, stop="th")])
def test_a_stream_is_what_generate_returns(params):
    llm = compiled(model(), ["prune:1", "ngram"], tree=[2, 2, 1], tokenizer=tiny_tokenizer())
    expected = llm.generate("hello there", params)[0]
    chunks = list(llm.stream("hello there", params))
    output = chunks[-1].output
    assert (output.token_ids, output.text, output.finish_reason) == (expected.token_ids, expected.text, expected.finish_reason)
    assert "".join(chunk.text for chunk in chunks) == expected.text
    assert [token for chunk in chunks for token in chunk.token_ids] == expected.token_ids
    assert sum(chunk.num_accepted for chunk in chunks) == output.stats.accepted
    assert all(0 <= chunk.num_accepted <= len(chunk.token_ids) for chunk in chunks)


def test_streams_and_generate_interleave_and_may_be_left_early():
    llm = compiled(model(), ["prune:1"], tree=[2, 1], max_batch=2)
    params = SamplingParams(max_tokens=30)
    streams = {length: llm.stream(list(prompt(length)), params) for length in (1, 9, 65)}
    got = {length: next(one).token_ids for length, one in streams.items()}
    assert llm.generate(list(prompt(40)), params)[0].token_ids == reference(40, 30)
    streams.pop(1).close()
    for length, one in streams.items():
        assert got[length] + [token for chunk in one for token in chunk.token_ids] == reference(length, 30)
    assert not llm.engine.has_work and not llm.engine.cache.request_ids
    assert greedy(llm, 9, 30).token_ids == reference(9, 30)
    never_started = llm.stream(list(prompt(9)), params)
    del never_started
    assert not llm.engine.has_work


def test_a_stream_that_is_ended_from_outside_still_ends_with_its_output():
    llm = compiled(model(), ["prune:1"], tree=[2, 1], tokenizer=tiny_tokenizer())
    chunks = llm.stream(list(prompt(9)), SamplingParams(max_tokens=50))
    first = next(chunks)
    aborted = llm.engine.abort(first.request_id)
    (last,) = chunks
    assert last.output is aborted and aborted.finish_reason == "abort"
    assert first.text + last.text == aborted.text and first.token_ids + last.token_ids == aborted.token_ids


@pytest.mark.parametrize("ssms", [[], ["prune:1", "ngram"]])
@pytest.mark.parametrize("after", [1, 4, 17])
def test_ctrl_c_gives_what_was_produced_and_leaves_the_engine_usable(after, ssms):
    llm = compiled(model(), ssms, tree=[2, 1], max_batch=2, tokenizer=tiny_tokenizer())
    left = after

    def interrupt(record):
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    prompts = [list(prompt(length)) for length in (9, 1, 65)]
    llm.engine.observer = interrupt
    with pytest.raises(GenerationInterrupted) as caught:
        llm.generate(prompts, SamplingParams(max_tokens=20))
    assert isinstance(caught.value, KeyboardInterrupt) and not isinstance(caught.value, Exception)
    outputs = caught.value.outputs
    assert [output.prompt_token_ids for output in outputs] == prompts
    for output, length in zip(outputs, (9, 1, 65), strict=True):
        assert output.token_ids == reference(length, 20)[: len(output.token_ids)]
        assert output.text == tiny_tokenizer().decode(output.token_ids, skip_special_tokens=True)
        assert output.finish_reason == ("length" if len(output.token_ids) == 20 else "abort")
    assert 0 < sum(len(output.token_ids) for output in outputs) < 60
    left = 2
    with pytest.raises(GenerationInterrupted):
        list(llm.stream(prompts[0], SamplingParams(max_tokens=20)))
    assert not llm.engine.has_work and not llm.engine.cache.request_ids
    llm.engine.observer = None
    for output, length in zip(llm.generate(prompts, SamplingParams(max_tokens=20)), (9, 1, 65), strict=True):
        assert output.token_ids == reference(length, 20)


def test_explain_tells_the_plan():
    llm = compiled(model(), [unrelated(), "prune:1", "ngram"], tree=[2, 2, 1], max_batch=3, max_len=99)
    text = llm.explain()
    for part in ("float32", "⟨2,2,1⟩", "verifier auto", "up to 3", "99 tokens", "LlamaForCausalLM, prune:1, ngram", "KV cache", "MB"):
        assert part in text, part
    for part in (
        "row invariance",
        "lower_attention 2 of 2",
        "flexspec.tree_attention.default",
        "ssm prune:1",
        llm.plan.llm.model.lowering.target,
    ):
        assert part in text, part
    plain = compiled(model(), native=False).explain()
    assert "none, plain decoding" in plain and "cpu-torch (not cpu-native: not asked for)" in plain


def test_a_strategy_says_what_the_arguments_do_not(tmp_path):
    strategy = Strategy(dtype="bfloat16", drafters=("prune:1", "ngram"), tree=(2, 1), verifier="mss", max_batch=3, max_len=77)
    path = tmp_path / "strategy.json"
    strategy.save(path)
    assert json.loads(path.read_text())["version"] == 2
    assert load_strategy(path) == strategy
    for given in (strategy, path, str(path)):
        assert flexspec.compile(model(), strategy=given).plan.strategy == strategy
    llm = flexspec.compile(model(), ["ngram"], path, dtype="float32", tree=[1, 1], verifier="coupled", max_batch=1, max_len=50)
    assert llm.plan.strategy == Strategy(dtype="float32", drafters=("ngram",), tree=(1, 1), verifier="coupled", max_batch=1, max_len=50)
    assert flexspec.compile(model(), [], strategy).plan.strategy.tree == PLAIN, "no drafters, no tree"
    llm.plan.strategy.save(path)
    again = flexspec.compile(model(), strategy=path)
    assert again.plan.strategy == llm.plan.strategy and greedy(again, 9, 20).token_ids == reference(9, 20)


def test_a_saved_strategy_makes_the_same_drafters_of_equal_names(tmp_path):
    path = tmp_path / "strategy.json"
    llm = compiled(model(), ["prune:1", "prune:1"], tree=[1, 1])
    llm.plan.strategy.save(path)
    assert load_strategy(path).drafters == ("prune:1", "prune:1")
    again = flexspec.compile(model(), strategy=path)
    for one in (llm, again):
        assert [drafter.name for drafter in one.drafters] == ["prune:1", "prune:1#2"]
    assert again.plan.strategy == llm.plan.strategy and greedy(again, 9, 20).token_ids == reference(9, 20)


@pytest.mark.parametrize("verifier", ["coupled", "mss", "without_replacement", "traversal"])
def test_the_smallest_temperature_is_greedy(verifier):
    params = SamplingParams(temperature=5e-324, max_tokens=20, top_p=0.9)
    llm = compiled(model(), ["prune:1", unrelated()], tree=[2, 1], verifier=verifier)
    assert llm.generate([list(prompt(9))], params)[0].token_ids == reference(9, 20)


def test_a_strategy_takes_lists():
    strategy = flexspec.Strategy(dtype="float32", drafters=["prune:1"], tree=[2, 1], buckets=[1, 16])
    assert (strategy.drafters, strategy.tree, strategy.buckets) == (("prune:1",), TreeSpec(widths=(2, 1)), (1, 16))
    usual = strategy.replaced(buckets=list(Strategy(dtype="float32").buckets))
    assert greedy(flexspec.compile(model(), strategy=usual), 9, 20).token_ids == reference(9, 20)
    with pytest.raises(UsageError, match="drafters='ngram'"):
        flexspec.Strategy(dtype="float32", drafters="ngram")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "not JSON"),
        ("[]", "version 2"),
        ('{"version": 3, "dtype": "float32"}', "version 2"),
        ('{"dtype": "float32"}', "version 2"),
        ('{"version": 1}', "dtype"),
        ('{"version": 1, "dtype": "float32", "speed": 3}', "speed"),
        ('{"version": 1, "dtype": "float16"}', "float32, bfloat16"),
        ('{"version": 1, "dtype": ["float32"]}', "float32, bfloat16"),
        ('{"version": 1, "dtype": "float32", "tree": 3}', "tree=3"),
        ('{"version": 1, "dtype": "float32", "tree": ["2"]}', "width"),
        ('{"version": 1, "dtype": "float32", "buckets": ["a"]}', "buckets"),
        ('{"version": 1, "dtype": "float32", "buckets": [1, "a"]}', "buckets"),
        ('{"version": 1, "dtype": "float32", "drafters": [3]}', "3"),
        ('{"version": 1, "dtype": "float32", "verifier": "fast"}', "verifier='fast'"),
        ('{"version": 1, "dtype": "float32", "verifier": ["mss"]}', "verifier"),
        ('{"version": 1, "dtype": "float32", "max_batch": 0}', "max_batch=0"),
    ],
)
def test_a_strategy_file_that_is_none_is_refused_in_one_line(tmp_path, content, expected):
    path = tmp_path / "strategy.json"
    path.write_text(content)
    with pytest.raises(UsageError) as caught:
        flexspec.compile(model(), strategy=path)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_warm_up_covers_every_pass_so_that_no_request_waits_for_a_compilation():
    llm = compiled(model(), ["prune:1"], tree=[2, 1])
    records = recorded(llm)
    llm.generate([list(prompt(length)) for length in (1, 300, 9)], SHORT)
    assert records and llm.plan.strategy.buckets[-1] >= 300
