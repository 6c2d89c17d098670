"""llama.cpp as a peer, through `llama_cpp` if it is installed."""

import importlib
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from flexspec.bench.gguf_export import write_gguf
from flexspec.bench.measurement import GenerationSettings, Measurement
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.tree_shape import PLAIN, Tree

PACKAGE = "llama-cpp-python"


class LlamaCppSystem:
    """llama.cpp on a GGUF file of the same precision, with as many threads as PyTorch has.

    Prefill is the time to the first token that its generator yields.

    Args:
        model: a `llama_cpp.Llama`.
        settings: what is generated.
        eos_token_ids: tokens that end a text.
    """

    def __init__(self, model: Any, settings: GenerationSettings, eos_token_ids: Sequence[int]) -> None:
        self.name = "llama.cpp"
        self.drafters: tuple[str, ...] = ()
        self.tree: Tree = PLAIN
        self._model = model
        self._settings = settings
        self._eos = frozenset(eos_token_ids)

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """As `System.run`; takes one prompt."""
        (prompt,) = prompts
        settings = self._settings
        self._model.reset()  # else it would keep what this prompt shares with the last one
        self._model.set_seed(seed)
        times: list[float] = []
        began = perf_counter()
        tokens = self._model.generate(list(prompt), temp=settings.temperature, top_p=settings.top_p, top_k=0, min_p=0.0, repeat_penalty=1.0)
        for token in tokens:
            times.append(perf_counter())
            if token in self._eos or len(times) == settings.max_tokens:
                break
        return Measurement(
            new_tokens=len(times),
            decode_tokens=len(times) - 1,
            steps=len(times),
            prefill_s=times[0] - began,
            decode_s=times[-1] - times[0],
        )


def llama_cpp(task: PeerTask) -> LlamaCppSystem:
    """Export the weights and load them.

    Raises:
        PeerUnavailable: if llama_cpp is not installed, or can't take the model.
    """
    try:
        library: Any = importlib.import_module("llama_cpp")
    except ImportError:
        raise PeerUnavailable(f"llama_cpp is not installed: pip install {PACKAGE}") from None
    path = task.scratch / "model.gguf"
    write_gguf(task.loaded, task.dtype, path)
    threads = torch.get_num_threads()
    try:
        model = library.Llama(model_path=str(path), n_ctx=task.max_len, n_threads=threads, n_threads_batch=threads, verbose=False)
    except ValueError as error:
        raise PeerUnavailable(f"llama.cpp can't load the model: {error}") from None
    return LlamaCppSystem(model, task.settings, task.loaded.eos_token_ids)
