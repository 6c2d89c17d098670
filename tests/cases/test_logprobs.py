"""Case 17: log probabilities are Hugging Face's, and the same speculatively as plainly; also those of prompts."""

from collections.abc import Sequence
from functools import cache

import pytest
import torch

from compile_once import ADAPTIVE, compiled, model, prompt, self_drafter, unrelated, with_eos
from flexspec import LLM, Output, SamplingParams
from flexspec.codegen.cpu.torch_model import TorchModel
from flexspec.runtime.logprobs import TokenLogprobs

TOP = 5
LENGTHS = (1, 9, 33)


def prompts() -> list[list[int]]:
    return [list(prompt(length, seed=length)) for length in LENGTHS]


def systems(plain: LLM) -> dict[str, tuple[list, object]]:
    """Drafters and tree of each way to speculate."""
    return {
        "pruned, wide": (["prune:1"], [3, 2, 1]),
        "unrelated": ([unrelated()], [4]),
        "self": ([self_drafter(plain)], [2, 2, 1]),
        "merged": (["ngram", unrelated(), "prune:1"], [2, 2, 1]),
        "adaptive": (["suffix", "prune:1"], ADAPTIVE),
    }


@cache
def reference(ids: tuple[int, ...], family: str = "llama") -> torch.Tensor:
    """[len(ids), vocab], Hugging Face's log-softmax after each token of a text."""
    with torch.no_grad():
        return torch.log_softmax(model(family)(torch.tensor([ids])).logits[0].double(), dim=-1)


def assert_are(entries: Sequence[TokenLogprobs | None], tokens: Sequence[int], logprobs: torch.Tensor) -> None:
    """The entries of `tokens` are those in the rows of `logprobs`, within 1e-3."""
    assert len(entries) == len(tokens) == len(logprobs)
    for entry, token, row in zip(entries, tokens, logprobs, strict=True):
        assert entry is not None and entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
        assert len(entry.top) == TOP and list(entry.top.values()) == pytest.approx(row.topk(TOP).values.tolist(), abs=1e-3)
        assert all(value == pytest.approx(float(row[other]), abs=1e-3) for other, value in entry.top.items())


def assert_hugging_faces(output: Output, family: str = "llama") -> None:
    """The new tokens' entries are Hugging Face's."""
    given = output.prompt_token_ids
    text = (*given, *output.token_ids)
    assert output.logprobs is not None
    assert_are(output.logprobs, output.token_ids, reference(text, family)[len(given) - 1 : -1])


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_row_17_speculative_plain_and_hugging_face(temperature, time_is_free):
    plain = compiled(model())
    native = plain.plan.llm.model.lowering.target == "cpu-native"
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=7, top_p=0.95 if temperature else 1.0, logprobs=TOP)
    expected = plain.generate(prompts(), params)
    for output in expected:
        assert_hugging_faces(output)
    for name, (ssms, tree) in systems(plain).items():
        outputs = compiled(model(), ssms, tree=tree).generate(prompts(), params)
        for one, other in zip(expected, outputs, strict=True):
            assert one.token_ids == other.token_ids, name
            if native:  # row-invariant: bit for bit
                assert one.logprobs == other.logprobs, name
            assert_hugging_faces(other)
        drafted, accepted = (sum(getattr(output.stats, count) for output in outputs) for count in ("drafted", "accepted"))
        assert 0 < accepted < drafted or name == "unrelated", f"{name}: {accepted} of {drafted}"


def test_row_17_every_way_to_end():
    free = compiled(model()).generate(prompts()[1], SamplingParams(max_tokens=24))[0].token_ids
    place = next(place for place in range(5, 24) if free[place] not in free[:place])
    for module, given, reason in (
        (with_eos(model(), free[place]), {"max_tokens": 24}, "stop"),
        (model(), {"max_tokens": 24, "stop_token_ids": [free[place]]}, "stop"),
        (model(), {"max_tokens": place + 1}, "length"),
    ):
        llm = compiled(module, [self_drafter(compiled(module))], tree=[2, 1, 1, 1])
        chunks = list(llm.stream(prompts()[1], SamplingParams(logprobs=TOP, **given)))
        output = chunks[-1].output
        assert output is not None and output.token_ids == free[: place + 1] and output.finish_reason == reason
        assert [entry for chunk in chunks for entry in chunk.logprobs or []] == output.logprobs
        assert_hugging_faces(output)


@pytest.mark.parametrize("family", ["llama", "opt"])
def test_prompts_in_chunks_smaller_than_them(family):
    """A step scores 128 tokens of prompts at most, so the longer prompt takes several, next to a request that decodes."""
    llm = compiled(model(family), ["prune:1"], tree=[2, 2, 1])
    texts = [list(prompt(5, seed=1)), list(prompt(300, seed=2)), list(prompt(40, seed=3)), list(prompt(1, seed=4))]
    asks = SamplingParams(max_tokens=4, prompt_logprobs=TOP, logprobs=TOP)
    outputs = llm.generate(texts, [SamplingParams(max_tokens=12), asks, asks, asks])
    assert outputs[0].prompt_logprobs is None and outputs[0].logprobs is None
    for ids, output in zip(texts[1:], outputs[1:], strict=True):
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        assert_are(output.prompt_logprobs[1:], ids[1:], reference(tuple(ids), family)[:-1])
        assert_hugging_faces(output, family)
    again = llm.generate(texts, SamplingParams(max_tokens=4))
    assert [output.token_ids for output in again[1:]] == [output.token_ids for output in outputs[1:]]


def test_the_torch_target_puts_out_all_rows_too():
    given = SamplingParams(max_tokens=6, prompt_logprobs=TOP, logprobs=TOP)
    ids = list(prompt(150, seed=5))
    llm = compiled(model(), ["prune:1"], tree=[2, 2, 1], native=False)
    assert isinstance(llm.plan.llm.model, TorchModel)
    (output,) = llm.generate(ids, given)
    assert output.prompt_logprobs is not None
    assert_are(output.prompt_logprobs[1:], ids[1:], reference(tuple(ids))[:-1])
    assert_hugging_faces(output)
