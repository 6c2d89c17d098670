"""Hugging Face transformers' `generate` as a peer, plain or with its prompt lookup."""

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from flexspec.bench.measurement import Measurement
from flexspec.bench.peer import PeerTask
from flexspec.tree_shape import Tree, TreeSpec

_LOOKUP_TOKENS = 8


class HuggingFaceSystem:
    """`generate` on the same weights in the same dtype, with its KV cache.

    Prefill is the time to the first tokens that reach a streamer; the streamer is handed the tokens of every pass as it ends.

    Args:
        name: as reports call it.
        task: what is measured.
        lookup_tokens: prompt-lookup tokens of a pass; 0 for none.
    """

    def __init__(self, name: str, task: PeerTask, *, lookup_tokens: int = 0) -> None:
        self.name = name
        self.drafters: tuple[str, ...] = ("prompt-lookup",) if lookup_tokens else ()
        self.tree: Tree = TreeSpec(widths=(1,) * lookup_tokens)
        self._module: Any = task.loaded.module
        self._config = _generation_config(task, lookup_tokens)

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """As `System.run`; takes one prompt."""
        (prompt,) = prompts
        ids = torch.tensor([list(prompt)])  # [1, prompt]
        clock = _Clock()
        with torch.inference_mode(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            clock.start()
            self._module.generate(ids, attention_mask=torch.ones_like(ids), generation_config=self._config, streamer=clock)
        return clock.measurement()


class _Clock(BaseStreamer):
    """Notes when the tokens of each pass arrive; the first call brings the prompt."""

    def __init__(self) -> None:
        self._counts: list[int] = []
        self._times: list[float] = []

    def start(self) -> None:
        self._began = perf_counter()

    def put(self, value: torch.Tensor) -> None:
        self._counts.append(value.numel())
        self._times.append(perf_counter())

    def end(self) -> None:
        pass

    def measurement(self) -> Measurement:
        counts, times = self._counts[1:], self._times[1:]
        return Measurement(
            new_tokens=sum(counts),
            decode_tokens=sum(counts[1:]),
            steps=len(counts),
            prefill_s=times[0] - self._began,
            decode_s=times[-1] - times[0],
        )


def hugging_face(task: PeerTask) -> HuggingFaceSystem:
    """Plain `generate`."""
    return HuggingFaceSystem("hf", task)


def hugging_face_lookup(task: PeerTask) -> HuggingFaceSystem:
    """`generate` with prompt lookup."""
    return HuggingFaceSystem("hf-lookup", task, lookup_tokens=_LOOKUP_TOKENS)


def _generation_config(task: PeerTask, lookup_tokens: int) -> GenerationConfig:
    settings = task.settings
    eos = list(task.loaded.eos_token_ids)
    options: dict[str, Any] = {
        "max_new_tokens": settings.max_tokens,
        "eos_token_id": eos or None,
        "pad_token_id": eos[0] if eos else 0,
        "use_cache": True,
        "do_sample": settings.temperature > 0,
    }
    if settings.temperature > 0:
        options |= {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
    if lookup_tokens:
        options["prompt_lookup_num_tokens"] = lookup_tokens
    config_class: Any = GenerationConfig  # untyped
    config: GenerationConfig = config_class(**options)
    return config
