"""The LLM's hidden states over a corpus, computed once and kept in a file."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from flexspec.codegen.batch import chain_batch
from flexspec.codegen.compiled_model import CompiledModel
from flexspec.codegen.kv_storage import KVStorage
from flexspec.errors import UsageError
from flexspec.tuning.corpus import Text


class StateFile:
    """Hidden states bfloat16 [tokens of all texts, hidden_size of the compiled model], in a file that is as good as memory.

    Args:
        path: of the file; texts that it holds already are not computed again.
        texts: whose states; those that are added to a corpus come last.
        model: the compiled LLM, asked for hidden states.
    """

    def __init__(self, path: Path, texts: Sequence[Text], model: CompiledModel) -> None:
        self._path = path
        self._texts = texts
        self._model = model
        self._ends = np.cumsum([len(text.tokens) for text in texts])

    def fill(self, progress: Callable[[int], None]) -> None:
        """Compute what is missing.

        Args:
            progress: told how many texts are done.

        Raises:
            UsageError: if the disk has no room.
        """
        row_bytes = 2 * self._model.hidden_size
        size = self._path.stat().st_size if self._path.exists() else 0
        done = int(np.searchsorted(self._ends * row_bytes, size, side="right"))
        self._check_room(int(self._ends[-1]) * row_bytes - size)
        longest = max(len(text.tokens) for text in self._texts)
        kv = KVStorage.of_requests(self._model.kv_shape, longest)
        try:
            with self._path.open("r+b" if self._path.exists() else "wb") as file:
                file.truncate(int(self._ends[done - 1]) * row_bytes if done else 0)
                file.seek(0, os.SEEK_END)
                progress(done)
                for number in range(done, len(self._texts)):
                    file.write(self._states(self._texts[number], kv).view(torch.int16).numpy().tobytes())
                    progress(number + 1)
        except OSError as error:
            raise UsageError(f"{str(self._path)!r} can't be written ({error.strerror}): make room there, or give another folder") from None

    def read(self, number: int) -> Tensor:
        """bfloat16 [tokens, hidden_size] of a text."""
        end, length = int(self._ends[number]), len(self._texts[number].tokens)
        columns = self._model.hidden_size
        raw = np.fromfile(self._path, dtype=np.int16, count=length * columns, offset=2 * columns * (end - length))
        return torch.from_numpy(raw).view(torch.bfloat16).reshape(length, columns)

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)

    def _check_room(self, missing: int) -> None:
        free = shutil.disk_usage(self._path.parent).free
        if missing > free:
            raise UsageError(
                f"{missing / 1e9:.2f} GB are needed in {str(self._path.parent)!r} for hidden states and {free / 1e9:.2f} GB are "
                "free: make room there, or give fewer tokens, or another folder"
            )

    def _states(self, text: Text, kv: KVStorage) -> Tensor:
        chunks = []
        step = self._model.max_pass_tokens
        for start in range(0, len(text.tokens), step):
            tokens = text.tokens[start : start + step]
            last = np.array([len(tokens) - 1], dtype=np.int32)
            self._model.forward(chain_batch(tokens, start=start, block_table=kv.block_table, output_rows=last), kv)
            chunks.append(self._model.hidden_states(np.arange(len(tokens), dtype=np.int32)).to(torch.bfloat16))
        return torch.cat(chunks)
