"""What the engine must emit, computed by a loop without cache, batch or drafts."""

import torch

from flexspec.config import SamplingParams
from flexspec.runtime.engine import Engine
from flexspec.runtime.kv_cache import KVCache
from flexspec.runtime.sampling import RequestSampler
from toy_model import ToyModel


def plain(model: ToyModel, prompt: list[int], params: SamplingParams, *, eos: tuple[int, ...] = (), max_len: int = 10**9) -> list[int]:
    """New tokens of plain decoding; stop strings are not looked at."""
    sampler = RequestSampler(params, seed=params.seed or 0, vocab_limit=model.vocab_size)
    tokens = list(prompt)
    while len(tokens) - len(prompt) < params.max_tokens and len(tokens) < max_len:
        tokens.append(sampler.pick(torch.from_numpy(model.logits_of(tokens)), len(tokens)))
        if tokens[-1] in eos and not params.ignore_eos:
            break
    return tokens[len(prompt) :]


def cached_tokens(cache: KVCache, request_id: int) -> list[int]:
    """The tokens that a toy model wrote into the committed slots of a request."""
    seen = cache.storage.keys[0, cache.physical_slots(request_id), 0]
    assert seen[:, 1].tolist() == list(range(len(seen)))
    return seen[:, 0].int().tolist()


def run_checked(engine: Engine, prompts: dict[int, list[int]]) -> dict[int, list[int]]:
    """Step until nothing is left, checking after every step that the cache is a linear prefill of each text.

    Args:
        engine: with a toy model.
        prompts: of the requests that were added.

    Returns:
        The new tokens of every request.
    """
    texts = {request_id: list(prompt) for request_id, prompt in prompts.items()}
    while engine.has_work:
        emitted = set()
        for chunk in engine.step():
            texts[chunk.request_id] += chunk.token_ids
            if chunk.output is None:
                emitted.add(chunk.request_id)
            else:
                assert chunk.output.token_ids == texts[chunk.request_id][len(prompts[chunk.request_id]) :]
        assert emitted <= engine.cache.request_ids
        for request_id in engine.cache.request_ids:
            cached, text = cached_tokens(engine.cache, request_id), texts[request_id]
            # What emitted nothing reads its prompt, or once more the text that it lost to a preemption.
            assert cached == (text[:-1] if request_id in emitted else text[: len(cached)])
    return {request_id: text[len(prompts[request_id]) :] for request_id, text in texts.items()}
