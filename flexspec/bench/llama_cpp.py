"""llama.cpp as a peer, through `llama_cpp` if it is installed: plain, with its prompt lookup, or on a quantised file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import LlamaFileType

from flexspec.bench.gguf_export import write_gguf
from flexspec.bench.gguf_source import source_gguf
from flexspec.bench.measurement import Measurement
from flexspec.bench.pass_clock import PassClock
from flexspec.bench.peer import PeerTask, PeerUnavailable, import_peer
from flexspec.tree_shape import PLAIN, Tree, TreeSpec

PACKAGES = ("llama-cpp-python",)

# What the package's documentation recommends for machines without a GPU.
_LOOKUP_TOKENS = 2


class LlamaCppSystem:
    """llama.cpp on a GGUF file, with as many threads as PyTorch has.

    Prefill is the time to the first token that its generator yields.

    Args:
        name: as reports call it.
        model: a `llama_cpp.Llama`.
        task: what is measured.
        lookup: drafts for the model; None if it decodes plainly.
    """

    def __init__(self, name: str, model: Any, task: PeerTask, *, lookup: "CountedDrafter | None" = None) -> None:
        self.name = name
        self.drafters: tuple[str, ...] = () if lookup is None else ("prompt-lookup",)
        self.tree: Tree = PLAIN if lookup is None else TreeSpec(widths=(1,) * _LOOKUP_TOKENS)
        self._model = model
        self._settings = task.settings
        self._eos = frozenset(task.loaded.eos_token_ids)
        self._lookup = lookup

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """As `System.run`; takes one prompt."""
        (prompt,) = prompts
        settings = self._settings
        self._model.reset()  # else it would keep what this prompt shares with the last one
        self._model.set_seed(seed)
        clock = PassClock()
        clock.start()
        tokens = self._model.generate(list(prompt), temp=settings.temperature, top_p=settings.top_p, top_k=0, min_p=0.0, repeat_penalty=1.0)
        drafts_before: int | None = None
        for token in tokens:
            # Accepted drafts are yielded one by one; before every pass but prefill's, the drafter is asked once.
            drafts = None if self._lookup is None else self._lookup.calls
            clock.note(1, same_pass=drafts is not None and drafts == drafts_before)
            drafts_before = drafts
            if token in self._eos or clock.tokens == settings.max_tokens:
                break
        return clock.measurement()


class CountedDrafter:
    """A draft model of `llama_cpp` that knows how often it was asked.

    Args:
        drafter: a `llama_cpp.LlamaDraftModel`.
    """

    def __init__(self, drafter: Any) -> None:
        self.calls = 0
        self._drafter = drafter

    def __call__(self, input_ids: Any, /, **options: Any) -> Any:
        """Token ids that may follow `input_ids`, [tokens]."""
        self.calls += 1
        return self._drafter(input_ids, **options)


def llama_cpp(task: PeerTask) -> LlamaCppSystem:
    """llama.cpp on the same weights in the same dtype.

    Raises:
        PeerUnavailable: if llama_cpp is not installed, or can't take the model.
    """
    library = _library()
    return LlamaCppSystem("llama.cpp", _load(library, _exported(task), task), task)


def llama_cpp_q4_1(task: PeerTask) -> LlamaCppSystem:
    """llama.cpp on the quantised file that the model was read from.

    Raises:
        PeerUnavailable: as `llama_cpp`, or if the model doesn't come from a GGUF file of type Q4_1.
    """
    library = _library()
    path = source_gguf(task.loaded.name, LlamaFileType.MOSTLY_Q4_1)
    return LlamaCppSystem("llama.cpp-q4_1", _load(library, path, task), task)


def llama_cpp_lookup(task: PeerTask) -> LlamaCppSystem:
    """llama.cpp on the same weights in the same dtype, with the prompt lookup of its Python package.

    Raises:
        PeerUnavailable: as `llama_cpp`.
    """
    library = _library()
    speculative = import_peer("llama_cpp.llama_speculative", *PACKAGES)
    lookup = CountedDrafter(speculative.LlamaPromptLookupDecoding(num_pred_tokens=_LOOKUP_TOKENS))
    # Without `logits_all`, the package has room for the logits of one batch and fails on texts that are longer.
    model = _load(library, _exported(task), task, draft_model=lookup, logits_all=True)
    return LlamaCppSystem("llama.cpp-lookup", model, task, lookup=lookup)


def _library() -> Any:
    return import_peer("llama_cpp", *PACKAGES)


def _exported(task: PeerTask) -> Path:
    """The weights as a GGUF file, which all peers of this kind share."""
    path = task.scratch / "model.gguf"
    if not path.exists():
        write_gguf(task.loaded, task.dtype, path)
    return path


def _load(library: Any, path: Path, task: PeerTask, **options: Any) -> Any:
    threads = torch.get_num_threads()
    try:
        return library.Llama(model_path=str(path), n_ctx=task.max_len, n_threads=threads, n_threads_batch=threads, verbose=False, **options)
    except (ValueError, MemoryError) as error:
        raise PeerUnavailable(f"llama.cpp can't load the model: {error}") from None
