"""OpenVINO as a peer, through the language-model pipeline of `openvino_genai` if it is installed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from flexspec.bench.measurement import GenerationSettings, Measurement
from flexspec.bench.openvino_export import write_openvino
from flexspec.bench.pass_clock import PassClock
from flexspec.bench.peer import PeerTask, PeerUnavailable, import_peer, last_line
from flexspec.tree_shape import PLAIN, Tree

PACKAGES = ("openvino-genai", "openvino")

_PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16"}


class OpenVinoSystem:
    """The pipeline on the same weights and a KV cache in the same precision, with as many threads as PyTorch has.

    Prefill is the time to the first token that reaches a streamer.

    Args:
        library: the module `openvino`.
        genai: the module `openvino_genai`.
        pipeline: its `LLMPipeline`.
        task: what is measured.
    """

    def __init__(self, library: Any, genai: Any, pipeline: Any, task: PeerTask) -> None:
        self.name = "openvino"
        self.drafters: tuple[str, ...] = ()
        self.tree: Tree = PLAIN
        self._library = library
        self._genai = genai
        self._pipeline = pipeline
        self._config = _generation_config(genai, task.settings, task.loaded.eos_token_ids)

    def run(self, prompts: Sequence[Sequence[int]], seed: int) -> Measurement:
        """As `System.run`; takes one prompt."""
        (prompt,) = prompts
        self._config.rng_seed = seed
        ids = self._library.Tensor(np.array([list(prompt)], dtype=np.int64))  # [1, prompt]
        clock = PassClock()
        streamer = _streamer(self._genai, clock)
        clock.start()
        self._pipeline.generate(ids, self._config, streamer)
        return clock.measurement()


def openvino(task: PeerTask) -> OpenVinoSystem:
    """Convert the weights and load them.

    Raises:
        PeerUnavailable: if openvino-genai is not installed, can't take the model, or has no kernels of the precision on this processor.
    """
    genai = import_peer("openvino_genai", PACKAGES[0])
    library = import_peer("openvino", PACKAGES[1])
    precision = _PRECISIONS[task.dtype]
    if task.dtype == torch.bfloat16 and "BF16" not in library.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise PeerUnavailable("openvino has no bfloat16 on this processor and would compute in float32")
    folder = task.scratch / "openvino"
    write_openvino(library, task.loaded, folder)
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # else it would keep what a prompt shares with earlier ones
    scheduler.max_num_batched_tokens = task.max_len
    try:
        pipeline = genai.LLMPipeline(
            str(folder),
            genai.Tokenizer(str(folder)),  # an empty one: only token ids are exchanged
            "CPU",
            scheduler_config=scheduler,
            INFERENCE_PRECISION_HINT=precision,
            KV_CACHE_PRECISION=precision,
            INFERENCE_NUM_THREADS=torch.get_num_threads(),
        )
    except RuntimeError as error:
        raise PeerUnavailable(f"openvino can't load the model: {last_line(error)}") from None
    return OpenVinoSystem(library, genai, pipeline, task)


def _streamer(genai: Any, clock: PassClock) -> Any:
    """Tells the clock about every token; the package's base class is known only once it is imported."""

    def write(_: Any, tokens: int | Sequence[int]) -> Any:
        clock.note(1 if isinstance(tokens, int) else len(tokens))
        return genai.StreamingStatus.RUNNING

    def end(_: Any) -> None:
        pass

    return type("Streamer", (genai.StreamerBase,), {"write": write, "end": end})()


def _generation_config(genai: Any, settings: GenerationSettings, eos_token_ids: Sequence[int]) -> Any:
    config = genai.GenerationConfig()
    config.max_new_tokens = settings.max_tokens
    config.ignore_eos = not eos_token_ids
    config.set_eos_token_id(eos_token_ids[0] if eos_token_ids else 0)  # unset, it would be the tokenizer's, which is empty
    config.stop_token_ids = set(eos_token_ids)
    config.do_sample = settings.temperature > 0
    if config.do_sample:
        config.temperature, config.top_p = settings.temperature, settings.top_p
    return config
