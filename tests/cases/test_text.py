"""Cases 9, 29 and 32: text that arrives a few tokens at a time, and prompts with nothing in them."""

from functools import cache

import pytest
import torch

from compile_once import ADAPTIVE, KnowingDrafter, compiled, model, prompt, reference, self_drafter
from flexspec import LLM, SamplingParams, UsageError
from tiny_models import greedy_reference, tiny, tiny_tokenizer

BLOCK = 5  # a chain of 4 and the bonus token
STOP_TOKENS = 60


TOKENIZER = tiny_tokenizer()
PAD = 2  # a token that no text of these tests has


def decode(ids: list[int]) -> str:
    return TOKENIZER.decode(ids, skip_special_tokens=True)


def stop_between(start: int) -> tuple[int, int, str]:
    """A prompt's length, a place in its text that is `start` tokens into a block of 5, and the two characters that join there.

    The text ends at its first stop string, so these characters must not come earlier.
    """
    for length in range(3, 30):
        ids = reference(length, STOP_TOKENS)
        text = decode(ids)
        for place in range(1 + start, len(ids) - 1, BLOCK):
            stop = decode([ids[place]])[-1:] + decode([ids[place + 1]])[:1]
            if len(stop) == 2 and stop.isascii() and stop.isprintable() and text.find(stop) == len(decode(ids[: place + 1])) - 1:
                return length, place, stop
    raise AssertionError("no such place")


@pytest.mark.parametrize("start", range(BLOCK))
@pytest.mark.parametrize("tree", [[1, 1, 1, 1], [2, 1, 1, 1], ADAPTIVE], ids=str)
def test_row_09_a_stop_string_across_two_tokens_anywhere_in_a_block(tree, start, time_is_free):
    length, place, stop = stop_between(start)
    ids, first = reference(length, STOP_TOKENS), list(prompt(length))
    plain = compiled(model(), tokenizer=TOKENIZER)
    llm = compiled(model(), [self_drafter(plain)], tree=tree, tokenizer=TOKENIZER)
    for params in (
        SamplingParams(max_tokens=STOP_TOKENS, stop=stop, logprobs=3),
        SamplingParams(max_tokens=STOP_TOKENS, stop=["never comes", stop, stop + "x"], logprobs=3),
    ):
        expected = ids[: place + 2]
        chunks = list(llm.stream(first, params))
        without = plain.generate(first, params)[0]
        for output in (llm.generate(first, params)[0], without, chunks[-1].output):
            assert output.token_ids == expected and output.finish_reason == "stop"
            assert output.text == decode(expected)[: decode(expected).index(stop)] == decode(ids)[: decode(ids).index(stop)]
            assert output.stats.new_tokens == len(expected) and output.stats.accepted <= len(expected)
            assert [entry.token_id for entry in output.logprobs] == expected
            assert [entry.logprob for entry in output.logprobs] == pytest.approx([entry.logprob for entry in without.logprobs], abs=1e-3)
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].output.text
        assert [token for chunk in chunks for token in chunk.token_ids] == expected
        assert [entry for chunk in chunks for entry in chunk.logprobs] == chunks[-1].output.logprobs
        assert chunks[-1].output.stats.steps == len(chunks) < len(expected)
        assert all(chunk.output is None for chunk in chunks[:-1])


def test_row_09_a_stop_string_that_never_completes_is_given_back():
    length, place, stop = stop_between(2)
    ids = reference(length, STOP_TOKENS)[: place + 1]
    for ssms, tree in ((["ngram"], [1, 1, 1]), (["prune:1", "suffix"], [3, 2, 1])):
        llm = compiled(model(), ssms, tree=tree, tokenizer=TOKENIZER)
        params = SamplingParams(max_tokens=place + 1, stop=stop)
        chunks = list(llm.stream(list(prompt(length)), params))
        assert "".join(chunk.text for chunk in chunks) == chunks[-1].output.text == decode(ids)
        assert chunks[-1].output.finish_reason == "length"


SENTENCE = "日本語🎉 Ω-ß"


@cache
def scripted(text: str):
    """A model that writes `text` over and over: each token's logits point at the token after it."""
    ids = TOKENIZER(text)["input_ids"]
    assert len(set(ids)) == len(ids), "a token follows two others"
    module = tiny("llama", layers=1)
    with torch.no_grad():
        for block in module.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
        module.model.norm.weight.fill_(1.0)
        for token, following in zip(ids, [*ids[1:], ids[0]], strict=True):
            module.lm_head.weight[following] = 10 * module.model.embed_tokens.weight[token]
    return module, ids


def stream(llm: LLM, ids: list[int], params: SamplingParams) -> list:
    chunks = list(llm.stream(ids, params))
    assert "".join(chunk.text for chunk in chunks) == chunks[-1].output.text
    return chunks


@pytest.mark.parametrize("depth", range(6))
def test_row_29_streamed_characters_are_whole_however_many_tokens_a_step_has(depth):
    module, ids = scripted(SENTENCE)
    rounds = 5
    whole = SENTENCE * rounds
    text = [ids[-1], *ids * rounds]
    drafters = {
        "right": KnowingDrafter([text], lambda root, follows, length: ([root, *follows[:depth]], range(-1, len(follows[:depth])))),
        # As deep as the text is long, modulo: 1 to `depth` + 1 tokens a step.
        "uneven": KnowingDrafter([text], lambda root, follows, length: uneven(root, follows, length, depth)),
        "wide": KnowingDrafter([text], lambda root, follows, length: after_a_sibling(*uneven(root, follows, length, depth))),
    }
    for name, drafter in drafters.items() if depth else ():
        llm = compiled(module, [drafter], tree=[2] + [1] * (depth - 1) if name == "wide" else [1] * depth, tokenizer=TOKENIZER)
        chunks = stream(llm, [ids[-1]], SamplingParams(max_tokens=rounds * len(ids)))
        assert chunks[-1].output.text == whole == TOKENIZER.decode(chunks[-1].output.token_ids)
        assert not any("\N{REPLACEMENT CHARACTER}" in chunk.text for chunk in chunks)
        sizes = {len(chunk.token_ids) for chunk in chunks}
        assert max(sizes) == depth + 1 if name == "right" else len(sizes) > 1
    plain = compiled(module, tokenizer=TOKENIZER)
    for count in (len(ids) * 2, len(ids) * 2 + 1, len(ids) + depth):
        output = stream(plain, [ids[-1]], SamplingParams(max_tokens=count))[-1].output
        assert output.text == TOKENIZER.decode(output.token_ids) == plain.generate([ids[-1]], SamplingParams(max_tokens=count))[0].text


def uneven(root, follows, length, depth):
    right = length % (depth + 1)
    tokens = [root, *follows[:right], *((token + 1) % 288 for token in follows[right:depth])]
    return tokens, range(-1, len(tokens) - 1)


def after_a_sibling(tokens, parents):
    """The chain with a first child of the root before it that is never right."""
    return [tokens[0], PAD, *tokens[1:]], [-1, 0, *(parent + 1 if parent > 0 else 0 for parent in list(parents)[1:])]


@pytest.mark.parametrize("tree", [[2, 2, 1], ADAPTIVE], ids=str)
def test_row_29_random_bytes_stream_as_they_decode(tree, time_is_free):
    """Invalid text: replacement characters may come, but the joined stream is still the whole text."""
    llm = compiled(model(), ["prune:1"], tree=tree, tokenizer=TOKENIZER)
    for seed in range(4):
        output = stream(llm, list(prompt(9)), SamplingParams(max_tokens=60, temperature=1.0, seed=seed))[-1].output
        assert output.text == decode(output.token_ids)


def test_row_32_an_empty_prompt_becomes_the_beginning_token_or_is_refused():
    module, tokenizer = model(), tiny_tokenizer()
    llm = compiled(module, ["prune:1"], tokenizer=tokenizer)
    expected = greedy_reference(module, [tokenizer.bos_token_id], 10)
    for output in [*llm.generate("", SamplingParams(max_tokens=10)), *llm.generate([[], ""], SamplingParams(max_tokens=10))]:
        assert output.prompt_token_ids == [tokenizer.bos_token_id] and output.token_ids == expected
    assert list(llm.stream("", SamplingParams(max_tokens=10)))[-1].output.token_ids == expected
    without = tiny_tokenizer()
    without.bos_token = None
    for no_bos, empty in ((compiled(module), [[]]), (compiled(module, tokenizer=without), "")):
        with pytest.raises(UsageError, match="empty"):
            no_bos.generate(empty, SamplingParams(max_tokens=1))


def test_row_32_a_prompt_of_special_tokens_only_is_like_any_other():
    module, tokenizer = model(), tiny_tokenizer()
    llm = compiled(module, ["prune:1"], tokenizer=tokenizer, tree=[2, 1])
    text = "<bos><pad><eos>"
    output = llm.generate(text, SamplingParams(max_tokens=10))[0]
    assert output.prompt_token_ids == [0, 2, 1] and output.token_ids == greedy_reference(module, [0, 2, 1], 10)
