"""Hugging Face transformers' `generate` as a peer: plain, with its prompt lookup, or assisted by a small model."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from flexspec.bench.measurement import Measurement
from flexspec.bench.pass_clock import PassClock
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.models.loaded_model import LoadedModel
from flexspec.models.pretrained import quiet_transformers
from flexspec.models.shared_copy import shared_copy
from flexspec.tree_shape import Tree, TreeSpec

PACKAGES = ("transformers",)

_LOOKUP_TOKENS = 8
# transformers' own defaults. Drafting ends earlier, at the first token that the assistant gives a probability below 0.4, so 20 is only
# the most; with a constant schedule no prompt is drafted for differently because of those that ran before it.
_ASSISTANT_TOKENS = 20
_ASSISTANT_SCHEDULE = "constant"


class HuggingFaceSystem:
    """`generate` on the same weights in the same dtype, with its KV cache.

    Prefill is the time to the first tokens that reach a streamer; the streamer is handed the tokens of every pass as it ends.

    Args:
        name: as reports call it.
        task: what is measured.
        lookup_tokens: prompt-lookup tokens of a pass; 0 for none.
        assisted: whether the task's assistant drafts.
    """

    def __init__(self, name: str, task: PeerTask, *, lookup_tokens: int = 0, assisted: bool = False) -> None:
        self.name = name
        self.drafters: tuple[str, ...] = ("prompt-lookup",) if lookup_tokens else ()
        self._config = _generation_config(task, lookup_tokens)
        # What a checkpoint's generation config says would fill what this one leaves open: penalties, for example.
        self._module = _with_generation_config(task.loaded, task.dtype, self._config)
        self._options: dict[str, Any] = {}
        draft_tokens = lookup_tokens
        if assisted:
            assert task.assistant is not None
            config = _untyped_config(num_assistant_tokens=_ASSISTANT_TOKENS, num_assistant_tokens_schedule=_ASSISTANT_SCHEDULE)
            self._options = {"assistant_model": _with_generation_config(task.assistant, task.dtype, config)}
            self.drafters, draft_tokens = (task.assistant.name,), _ASSISTANT_TOKENS
        self.tree: Tree = TreeSpec(widths=(1,) * draft_tokens)

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """As `System.run`; takes one prompt."""
        (prompt,) = prompts
        ids = torch.tensor([list(prompt)])  # [1, prompt]
        clock = PassClock()
        streamer = _Streamer(clock)
        with quiet_transformers(), torch.inference_mode(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            clock.start()
            self._module.generate(
                ids, attention_mask=torch.ones_like(ids), generation_config=self._config, streamer=streamer, **self._options
            )
        return clock.measurement()


class _Streamer(BaseStreamer):
    """Tells the clock about the tokens of each pass; the first call brings the prompt."""

    def __init__(self, clock: PassClock) -> None:
        self._clock = clock
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        if self._has_prompt:
            self._clock.note(value.numel())
        self._has_prompt = True

    def end(self) -> None:
        pass


def hugging_face(task: PeerTask) -> HuggingFaceSystem:
    """Plain `generate`.

    Raises:
        PeerUnavailable: if the model is none of transformers'.
    """
    return HuggingFaceSystem("hf", task)


def hugging_face_lookup(task: PeerTask) -> HuggingFaceSystem:
    """`generate` with prompt lookup; raises as `hugging_face` does."""
    return HuggingFaceSystem("hf-lookup", task, lookup_tokens=_LOOKUP_TOKENS)


def hugging_face_assisted(task: PeerTask) -> HuggingFaceSystem:
    """`generate` with the task's assistant.

    What transformers does with it is left as it is. Its version 5.24 applies temperature and top-p to the assistant's logits twice, which
    costs acceptance where they are not 1.

    Raises:
        PeerUnavailable: if there is none, or `generate` doesn't take it.
    """
    if task.assistant is None:
        raise PeerUnavailable(
            "no drafter of this run is a model that runs by itself, as heads and look-ups do not: give one, for example --also prune:4"
        )
    sizes = [model.vocab_size for model in (task.loaded, task.assistant)]
    if sizes[0] != sizes[1]:  # transformers would have both tokenizers encode and decode all texts again and again
        raise PeerUnavailable(
            f"transformers needs an assistant with as many token ids as the model: {task.assistant.name} has {sizes[1]}, and "
            f"{task.loaded.name} has {sizes[0]}"
        )
    return HuggingFaceSystem("hf-assisted", task, assisted=True)


def _with_generation_config(loaded: LoadedModel, dtype: torch.dtype, config: GenerationConfig) -> Any:
    if not hasattr(loaded.module, "generate"):
        raise PeerUnavailable(f"transformers can't run {loaded.name}: it is no model of a family that transformers knows")
    copied: Any = shared_copy(loaded.module, dtype)
    copied.generation_config = config
    return copied


def _generation_config(task: PeerTask, lookup_tokens: int) -> GenerationConfig:
    settings = task.settings
    eos = list(task.loaded.eos_token_ids)
    options: dict[str, Any] = {
        "max_new_tokens": settings.max_tokens,
        "eos_token_id": eos or None,
        "pad_token_id": eos[0] if eos else None,  # a token of the text would be taken for padding where assistants draft
        "use_cache": True,
        "do_sample": settings.temperature > 0,
    }
    if settings.temperature > 0:
        options |= {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
    if lookup_tokens:
        options["prompt_lookup_num_tokens"] = lookup_tokens
    return _untyped_config(**options)


def _untyped_config(**options: Any) -> GenerationConfig:
    config_class: Any = GenerationConfig
    config: GenerationConfig = config_class(**options)
    return config
