"""Cases 11, 13, 14, 30 and 31: draft models that do not quite fit."""

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

import flexspec
from compile_once import ADAPTIVE, KnowingDrafter, compiled, greedy, model, prompt, recorded, reference
from flexspec import SamplingParams, UsageError
from flexspec.runtime.drafters.ssm import SsmDrafter
from flexspec.runtime.token_tree import TokenTree
from tiny_models import TINY_VOCAB, greedy_reference, tiny, tiny_tokenizer


@pytest.mark.parametrize("length", [60, 64, 100])
@pytest.mark.parametrize("tree", [[1, 1, 1, 1], [2, 2, 1], ADAPTIVE], ids=str)
def test_row_11_a_draft_model_with_fewer_positions_stands_aside(tree, length, time_is_free):
    target, draft = gpt2(256), gpt2(64)
    lowered = compiled(draft, max_len=64).plan.llm.model
    drafter = SsmDrafter("short", lowered, max_requests=4, block_size=64)
    expected = greedy_reference(target, list(prompt(length)), 20)
    for ssms in ([draft], [drafter]):
        llm = compiled(target, ssms, tree=tree, max_len=None)
        assert llm.plan.strategy.max_len == 256
        records = recorded(llm)
        output = greedy(llm, length, 20)
        assert output.token_ids == expected
        assert (output.stats.drafted > 0) == (output.stats.accepted > 0) == (length < 64)
        assert output.stats.steps < 20 or length >= 64
        position = length
        for record in records:
            assert not record.tree.num_drafted or position + max(record.tree.depths()) <= 65, (
                "a node was drafted from beyond the draft model's positions"
            )
            position += len(record.token_ids)
    assert drafter.stats.fallbacks > 0 and drafter.stats.proposals > drafter.stats.fallbacks - (length >= 64)
    short = greedy(llm, 20, 20)
    assert short.token_ids == greedy_reference(target, list(prompt(20)), 20) and short.stats.accepted > 10


def save(folder: Path, vocab: int, seed: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Write a tiny model whose rows beyond the tokenizer's are the likeliest of all."""
    module = tiny("llama", seed=seed, layers=1, vocab=vocab)
    if vocab > TINY_VOCAB:
        with torch.no_grad():
            module.lm_head.weight[TINY_VOCAB:] *= 4
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a model with so many rows, made from a seed."""
    return cache(lambda vocab, seed: save(tmp_path_factory.mktemp(f"{vocab}-{seed}"), vocab, seed, tiny_tokenizer()))


@cache
def gpt2(positions: int):
    """Models with the same weights as far as both have positions, so that one's drafts suit the other."""
    module = tiny("gpt2", n_positions=256)
    if positions == 256:
        return module
    short = tiny("gpt2", n_positions=positions)
    short.load_state_dict({**module.state_dict(), "transformer.wpe.weight": module.transformer.wpe.weight[:positions]})
    return short


@pytest.mark.parametrize(("ours", "theirs"), [(416, 288), (288, 416)])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_row_13_vocabularies_padded_to_unlike_sizes_work_together(folder, temperature, ours, theirs, time_is_free):
    llm_folder, drafts = folder(ours, 1), [folder(theirs, 1), folder(theirs, 2)]
    params = SamplingParams(max_tokens=40, temperature=temperature, seed=4)
    plain = compiled(llm_folder, dtype="float32")
    expected = plain.generate("hello", params)[0]
    assert max(expected.token_ids) < TINY_VOCAB
    for verifier, tree in (("auto", [3, 2]), ("auto", ADAPTIVE), ("mss", [3, 2]), ("traversal", [3, 2]), ("point_mass", [3, 2])):
        llm = compiled(llm_folder, drafts, tree=tree, dtype="float32", verifier=verifier)
        records = recorded(llm)
        output = llm.generate("hello", params)[0]
        if verifier == "auto" or temperature == 0:
            assert output.token_ids == expected.token_ids
        assert max(output.token_ids) < TINY_VOCAB
        assert 0 < output.stats.drafted and all(max(record.tree.tokens) < TINY_VOCAB for record in records)
    if ours > TINY_VOCAB:  # without the limit the padding would have come
        with torch.no_grad():
            logits = flexspec.models.load.load_model(llm_folder).module(torch.tensor([expected.prompt_token_ids])).logits[0, -1]
        assert logits.argmax() >= TINY_VOCAB


def test_row_13_a_draft_model_that_lacks_the_last_tokens_of_the_text_stands_aside():
    """Token lists may hold ids that the draft model has no row for."""
    target = tiny("llama", vocab=416)
    draft = tiny("llama", vocab=288, layers=1)
    lowered = compiled(draft).plan.llm.model
    llm = compiled(target, [SsmDrafter("small", lowered, max_requests=4, block_size=600)], tree=[2, 1])
    for ids in ([400, 3], [3, 415]):
        output = llm.generate(ids, SamplingParams(max_tokens=20))[0]
        assert output.token_ids == greedy_reference(target, ids, 20)


def test_row_14_permuted_token_ids_are_refused_naming_the_first_that_differs(folder, tmp_path):
    permuted = tiny_tokenizer()
    backend = permuted.backend_tokenizer.to_str()
    vocab = permuted.get_vocab()
    texts = {token_id: token for token, token_id in vocab.items()}
    swapped = backend.replace(f'"{texts[70]}":70', f'"{texts[70]}":71').replace(f'"{texts[71]}":71', f'"{texts[71]}":70')
    assert swapped != backend
    permuted = type(permuted)(tokenizer_object=type(permuted.backend_tokenizer).from_str(swapped))
    draft = save(tmp_path / "draft", 288, 2, permuted)
    with pytest.raises(UsageError) as caught:
        compiled(folder(288, 1), [draft], dtype="float32")
    message = str(caught.value)
    assert "token 70 " in message and repr(texts[70]) in message and repr(texts[71]) in message and "\n" not in message


@pytest.mark.parametrize("tree", [[1, 1, 1], [3, 2], ADAPTIVE], ids=str)
def test_row_30_a_drafter_that_returns_nothing_makes_plain_steps(tree, time_is_free):
    class Nothing:
        name = "nothing"

        def propose(self, requests):
            return []

        def release(self, request_id):
            pass

    llm = compiled(model(), [Nothing()], tree=tree)
    with pytest.warns(RuntimeWarning, match="nothing") as caught:
        output = greedy(llm, 9, 20)
    assert len(caught) == 1 and output.stats.drafted == 0 and output.stats.steps == 20
    assert output.token_ids == reference(9, 120)[:20]

    silent = KnowingDrafter([], lambda root, follows, length: ([root], [-1]))
    output = greedy(compiled(model(), [silent], tree=tree), 9, 20)
    assert output.stats.drafted == 0 and output.token_ids == reference(9, 120)[:20]


@pytest.mark.parametrize("fault", ["a tree of another root", "a token that is none", "a parent that comes later"])
def test_row_30_a_drafter_that_returns_nonsense_makes_plain_steps(fault):
    trees = {
        "a tree of another root": lambda root: TokenTree(tokens=[(root + 1) % 288, 5], parents=[-1, 0]),
        "a token that is none": lambda root: TokenTree(tokens=[root, 288], parents=[-1, 0]),
        "a parent that comes later": lambda root: TokenTree(tokens=[root, 5, 6], parents=[-1, 2, 0]),
    }

    class Broken:
        name = "broken"

        def propose(self, requests):
            return [trees[fault](request.tokens[-1]) for request in requests]

        def release(self, request_id):
            pass

    llm = compiled(model(), [Broken()], tree=[2, 1])
    with pytest.warns(RuntimeWarning, match="broken") as caught:
        output = greedy(llm, 9, 20)
    assert len(caught) == 1 and output.token_ids == reference(9, 120)[:20]


@cache
def breaking_on(token: int):
    """A model that gives NaN for texts with `token`."""
    module = tiny("llama", layers=1)
    with torch.no_grad():
        module.model.embed_tokens.weight[token] = np.nan
    return module


@pytest.mark.parametrize(("verifier", "tree"), [("auto", [2, 1]), ("auto", ADAPTIVE), ("mss", [2, 1]), ("traversal", [2, 1])], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_row_30_nan_logits_of_a_draft_model_make_plain_steps_and_one_warning(temperature, verifier, tree, time_is_free):
    """The draft model breaks on one token; only the request that holds it decodes plainly."""
    bad, good = [*prompt(9), 200], [3, 4, 5]
    broken = breaking_on(200)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=2)
    plain = compiled(model()).generate([bad, good], params)
    llm = compiled(model(), [broken], tree=tree, verifier=verifier)
    with pytest.warns(RuntimeWarning, match="not finite") as caught:
        outputs = llm.generate([bad, good], params)
    assert len(caught) == 1 and outputs[0].stats.drafted == 0 and outputs[0].stats.steps == 20
    assert outputs[1].stats.drafted > 20
    if verifier == "auto":
        assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.generate([bad, good], params)


def test_row_31_what_does_not_fit_is_refused_at_the_start_with_the_sizes(monkeypatch, folder):
    target, draft = folder(288, 1), folder(416, 2)
    size = sum(file.stat().st_size for file in Path(draft).glob("*.safetensors"))
    # The draft model's weights, then everybody's KV caches, are more than there is.
    monkeypatch.setattr("flexspec.api.drafters.available_memory", lambda: size - 1)
    with pytest.raises(UsageError, match=r"weights of ssm .*416-2.* GB are available") as caught:
        compiled(target, [draft], dtype="float32")
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    monkeypatch.setattr("flexspec.api.compile.available_memory", lambda: 10_000_000)
    with pytest.raises(UsageError, match=r"KV cache of the model [\d.]+ GB.*ssms [\d.]+ GB.*available.*max_len") as caught:
        compiled(target, [draft], dtype="float32", max_batch=256, max_len=512)
    assert "\n" not in str(caught.value)
