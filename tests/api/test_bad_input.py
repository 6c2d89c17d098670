"""Every mistake is a ValueError of one line that names the value, what is allowed and the fix."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import flexspec
from compile_once import compiled, model
from flexspec import SamplingParams, UsageError
from tiny_models import tiny, tiny_tokenizer


def message_of(call) -> str:
    with pytest.raises(ValueError) as caught:
        call()
    assert isinstance(caught.value, UsageError), repr(caught.value)
    assert "\n" not in str(caught.value) and len(str(caught.value)) > 20
    return str(caught.value)


def unnamed(name):
    return SimpleNamespace(name=name, propose=None, release=None)


COMPILE = {
    "unknown model": (dict(model="./no-such-model"), ["no-such-model", "smollm2-135m"]),
    "a number for a model": (dict(model=5), ["5", "smollm2-135m"]),
    "no model": (dict(model=None), ["None", "smollm2-135m"]),
    "unknown ssm": (dict(ssms=["./n-gram"]), ["n-gram", "ngram"]),
    "ssm of no kind": (dict(ssms=[5]), ["5"]),
    "one ssm instead of a list": (dict(ssms="ngram"), ["['ngram']"]),
    "a module instead of a list": (dict(ssms=tiny("llama", layers=1)), ["list"]),
    "a number of ssms": (dict(ssms=3), ["3", "list"]),
    "an ssm twice": (dict(ssms=["ngram", "ngram"]), ["ngram", "twice"]),
    "prune nothing": (dict(ssms=["prune:"]), ["prune:K"]),
    "prune all": (dict(ssms=["prune:0"]), ["1 to 2"]),
    "prune more than there is": (dict(ssms=["prune:3"]), ["1 to 2"]),
    "prune a fraction": (dict(ssms=["prune:1.5"]), ["prune:1.5"]),
    "prune to thousands of digits": (dict(ssms=["prune:" + "9" * 5000]), ["prune:999", "prune:K"]),
    "a superscript": (dict(ssms=["prune:²"]), ["prune:²"]),
    "an ssm of another vocabulary": (dict(ssms=[tiny("llama", layers=1, vocab=100)]), ["100", "288"]),
    "a drafter without a name": (dict(ssms=[unnamed("")]), ["''", "non-empty string"]),
    "a drafter with a number for a name": (dict(ssms=[unnamed(5)]), ["name 5", "non-empty string"]),
    "statistics in a file that cannot be": (dict(statistics="a\0b"), ["a\\x00b", "path"]),
    "unknown device": (dict(device="tpu"), ["tpu", "cpu"]),
    "a dtype of GPUs": (dict(dtype="float16"), ["float16", "on a CPU", "float32, bfloat16", "device='cuda'"]),
    "unknown dtype": (dict(dtype="float8"), ["float8", "float32, bfloat16"]),
    "a KV cache of GPUs": (dict(kv_cache_dtype="fp8"), ["kv_cache_dtype='fp8'", "on a CPU", "'auto'", "device='cuda'"]),
    "unknown KV cache": (dict(kv_cache_dtype=torch.float16), ["torch.float16", "auto, fp8"]),
    "integer dtype": (dict(dtype=torch.int8), ["int8", "float32, bfloat16"]),
    "unknown verifier": (dict(verifier="fast"), ["fast", "auto, greedy, coupled, mss"]),
    "verifier of no kind": (dict(verifier=["mss"]), ["mss", "auto, greedy, coupled, mss"]),
    "width 0": (dict(tree=[2, 0], ssms=["ngram"]), ["[2, 0]"]),
    "width 1.5": (dict(tree=[1.5], ssms=["ngram"]), ["1.5"]),
    "a number for a tree": (dict(tree=4, ssms=["ngram"]), ["4", "2,2,1"]),
    "tree in words": (dict(tree="wide", ssms=["ngram"]), ["wide", "2,2,1"]),
    "a tree and no drafter": (dict(tree=[2, 1]), ["[2, 1]", "ngram"]),
    "too large a tree": (dict(tree=[9, 9, 9, 9], ssms=["ngram"]), ["7380", "1024"]),
    "no batch": (dict(max_batch=0), ["max_batch=0"]),
    "half a batch": (dict(max_batch=1.5), ["max_batch=1.5"]),
    "more requests than a pass has tokens": (dict(max_batch=513, max_len=10), ["513", "512"]),
    "no room": (dict(max_len=1), ["max_len=1"]),
    "more room than positions": (dict(max_len=513), ["513", "512"]),
    "length in words": (dict(max_len="long"), ["max_len='long'"]),
    "a strategy of no kind": (dict(strategy=3), ["3", "auto"]),
    "a strategy file that is not there": (dict(strategy="fast"), ["fast"]),
    "a tokenizer that is not there": (dict(tokenizer="./no-such"), ["no-such"]),
    "a tokenizer of no kind": (dict(tokenizer=5), ["5", "tokenizer"]),
}


@pytest.mark.parametrize("case", COMPILE)
def test_compile_refuses(case):
    options, expected = COMPILE[case]
    options = {"model": model(), "ssms": [], "max_batch": 2} | options
    message = message_of(lambda: flexspec.compile(options.pop("model"), **options))
    assert all(part in message for part in expected), message


def test_compile_refuses_folders_and_files_that_hold_no_decoder(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXSPEC_HOME", str(tmp_path / "home"))
    (tmp_path / "empty").mkdir()
    assert "config.json" in message_of(lambda: flexspec.compile(str(tmp_path / "empty")))
    (tmp_path / "t5").mkdir()
    (tmp_path / "t5" / "config.json").write_text('{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}')
    assert "decoder" in message_of(lambda: flexspec.compile(tmp_path / "t5"))
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00\x05")
    assert "cut.gguf" in message_of(lambda: flexspec.compile(tmp_path / "cut.gguf"))
    (tmp_path / "model.onnx").write_bytes(b"")
    message_of(lambda: flexspec.compile(tmp_path / "model.onnx"))


PARAMS = {
    "temperature": [-0.1, float("nan"), float("inf"), "warm", True, None],
    "top_k": [-1, 1.5, True, "5", None],
    "top_p": [0, -0.1, 1.1, float("nan"), "0.9", True, None],
    "min_p": [-0.1, 1.1, float("nan"), "0.1", False, None],
    "presence_penalty": [-2.1, 2.1, float("nan"), float("inf"), "1", True, None],
    "frequency_penalty": [-2.1, 2.1, float("nan"), float("-inf"), "1", False, None],
    "repetition_penalty": [0, -1, 0.001, 101, float("nan"), float("inf"), "1", True, None],
    "logit_bias": [
        {-1: 1},
        {"3": 1},
        {True: 1},
        {1.0: 1},
        {3: 101},
        {3: -101},
        {3: float("nan")},
        {3: "1"},
        {3: True},
        {3: None},
        [3],
        3,
        None,
    ],
    "logits_processors": [[None], ["f"], "f", 3, None],
    "max_tokens": [0, -1, 2.0, True, None],
    "min_tokens": [-1, 2.0, True, "3", 129, None],
    "stop_token_ids": [[-1], [True], [1.5], ["3"], "3", 3, None],
    "stop": [[""], [3], "", 3, None],
    "seed": [-1, 2**64, 1.5, "1", True],
    "n": [0, -1, 2, 1.5, True, "2", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in PARAMS.items() for value in values])
def test_sampling_params_refuse(name, value):
    message = message_of(lambda: SamplingParams(**{name: value}))
    assert f"{name}=" in message and "give" in message


def test_sampling_params_keep_what_they_were_given():
    bias = {3: 1.5}
    stops = ["a"]
    params = SamplingParams(logit_bias=bias, stop=stops, stop_token_ids=[4], logits_processors=max, temperature=np.float64(0.5))
    bias[3], stops[0] = 9.0, "b"
    assert (params.logit_bias, params.stop, params.stop_token_ids, params.processors) == ({3: 1.5}, ("a",), (4,), (max,))
    again = replace(params, seed=1)
    assert replace(again, seed=None) == params != again and hash(params) == hash(replace(again, seed=None))


@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_generate_refuses_tokens_that_the_model_lacks(name):
    llm = compiled(model())
    wrong = SamplingParams(**{name: {3: 1, 288: 1} if name == "logit_bias" else [3, 288]})
    for call in (llm.generate, llm.stream):
        message = message_of(lambda call=call: call([3], wrong))
        assert "288" in message and name in message and "0 to 287" in message
    assert not llm.engine.has_work


def test_what_a_users_processor_does_wrong_ends_the_call_with_its_name():
    llm = compiled(model(), ["ngram"], tree=[2, 1])

    def forgets_to_return(_token_ids, _logits):
        pass

    def too_many(token_ids, logits):
        return logits if len(token_ids) < 4 else torch.cat([logits, logits])

    for function in (forgets_to_return, too_many):
        wrong = SamplingParams(max_tokens=5, logits_processors=[function])
        assert function.__name__ in message_of(lambda wrong=wrong: llm.generate([3], wrong))
        assert function.__name__ in message_of(lambda wrong=wrong: list(llm.stream([3], wrong)))
    assert not llm.engine.has_work


def test_rules_that_leave_no_token_end_the_call_with_their_names():
    llm = compiled(model(), ["ngram"], tree=[2, 1])
    wrong = SamplingParams(max_tokens=5, min_tokens=4, stop_token_ids=[7], logit_bias={token: -100 for token in range(288) if token != 7})
    message = message_of(lambda: llm.generate([3], wrong))
    assert "logit_bias" in message and "min_tokens=4" in message
    assert llm.generate([3], replace(wrong, min_tokens=0))[0].token_ids == [7]


def prompts():
    return {
        "too long": ([3] * 40, ["40", "39"]),
        "beyond the vocabulary": ([3, 288], ["288", "287"]),
        "negative": ([3, -1], ["-1", "287"]),
        "fraction": ([3, 1.5], ["1.5"]),
        "booleans": ([True, False], ["True"]),
        "a number": (5, ["5"]),
        "nothing": (None, ["None"]),
        "a tensor": (torch.tensor([3, 4]), ["list of token ids"]),
        "an array": (np.array([3, 4]), ["list of token ids"]),
        "a message without a role": ([{"content": "hi"}], ["role"]),
        "bytes": (b"hello", ["hello"]),
        "half a character": ("hello \ud800", ["character 6"]),
        "one bad prompt among good ones": ([[3], [3, 999]], ["999"]),
        "three levels of lists": ([[[3]]], ["[[3]]"]),
        "a template that objects": ([{"role": "system", "content": "hi"}], ["roles must be user"]),
    }


@pytest.mark.parametrize("case", prompts())
def test_generate_refuses_prompts_and_starts_none(case):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('roles must be user') }}{% endif %}hi"
    llm = compiled(model(), max_len=40, tokenizer=tokenizer)
    wrong, expected = prompts()[case]
    message = message_of(lambda: llm.generate(wrong, SamplingParams(max_tokens=3)))
    assert all(part in message for part in expected), message
    if case != "one bad prompt among good ones":
        message_of(lambda: llm.stream(wrong, SamplingParams(max_tokens=3)))
    assert not llm.engine.has_work


def test_a_module_has_no_searched_strategy(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = message_of(lambda: compiled(model()))
    assert "strategy='auto' of 2 ranks is not allowed for a module (LlamaForCausalLM): give a strategy" in message


def test_chat_refuses_what_is_no_conversation():
    llm = compiled(model(), tokenizer=tiny_tokenizer())
    for wrong in ("hello", [3, 4], ["hello"], [[3]], [{"role": "user"}], 5):
        assert "role" in message_of(lambda wrong=wrong: llm.chat(wrong))
    without = tiny_tokenizer()
    without.chat_template = None
    assert "LlamaForCausalLM has no tokenizer, so prompts can't be chat messages: put its tokenizer.json beside" in message_of(
        lambda: compiled(model()).chat([{"role": "user", "content": "hi"}])
    )
    assert "chat template" in message_of(lambda: compiled(model(), tokenizer=without).chat([{"role": "user", "content": "hi"}]))


def test_generate_refuses_parameters_that_are_none():
    llm = compiled(model())
    for wrong in ({"temperature": 1}, "greedy", 5, [SamplingParams()] * 3, [], [{"temperature": 1}]):
        message_of(lambda wrong=wrong: llm.generate([[3]], wrong))
    for wrong in ({"temperature": 1}, [SamplingParams()], "greedy", {}, []):
        message_of(lambda wrong=wrong: llm.stream([3], wrong))
    assert "temperature" in message_of(lambda: compiled(model(), verifier="greedy").generate([3], SamplingParams(temperature=1.0)))
    assert not llm.engine.has_work
