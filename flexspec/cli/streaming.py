"""Following one request as it is generated, so that Ctrl-C keeps what there is."""

import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, cast

from flexspec.api.llm import LLM
from flexspec.config import SamplingParams
from flexspec.runtime.output import Chunk, GenerationInterrupted


def follow(llm: LLM, prompt: Any, params: SamplingParams, on_chunk: Callable[[Chunk], None]) -> None:
    """Complete `prompt`, calling `on_chunk` with each chunk; the last one carries the output.

    Raises:
        GenerationInterrupted: on Ctrl-C, wherever it strikes, with what was produced until then.
    """
    chunks = cast(Generator[Chunk, None, None], llm.stream(prompt, params))
    try:
        for chunk in chunks:
            with _uninterrupted():
                on_chunk(chunk)
    except GenerationInterrupted:
        raise
    except KeyboardInterrupt as interrupt:
        # It struck outside a step; the generator knows what was produced.
        chunks.throw(interrupt)
        raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts a Ctrl-C off until the end, so that nothing is shown by half."""
    interrupted = False

    def note(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt
