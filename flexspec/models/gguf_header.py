"""The header of a GGUF file, walked once before anything reads it: all that it says is there must be there.

GGUF's own reader believes every count, and would read the 2 ** 40 texts of a damaged list one by one past the end of the file.
"""

import math
import mmap
import struct
from pathlib import Path

from flexspec.errors import UsageError

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type; 8 is a text, 9 a list."""
_TEXT, _LIST = 8, 9
_NESTED = 4
_MOST_DIMS = 4
_VERSIONS = (2, 3)


class _Walk:
    """A place in a file, which moves on by what is read."""

    def __init__(self, content: mmap.mmap, order: str) -> None:
        self.content, self.order, self.place = content, order, 4

    def number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        self.skip(size)
        return int(struct.unpack_from(self.order + kind, self.content, self.place - size)[0])

    def skip(self, size: int) -> None:
        if size > len(self.content) - self.place:
            raise EOFError
        self.place += size

    def value(self, kind: int, depth: int = 0) -> None:
        if kind in _SIZES:
            self.skip(_SIZES[kind])
        elif kind == _TEXT:
            self.skip(self.number("Q"))
        elif kind == _LIST and depth < _NESTED:
            inner, count = self.number("I"), self.number("Q")
            if inner in _SIZES:
                self.skip(count * _SIZES[inner])
            else:
                if count > len(self.content):
                    raise EOFError
                for _ in range(count):
                    self.value(inner, depth + 1)
        else:
            raise ValueError(f"a value is of type {kind}, which GGUF has not")


def check_header(path: Path) -> None:
    """Refuse a file whose header says more than the file holds.

    Raises:
        UsageError: if it is cut short or damaged.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            _walk(content)
        except (EOFError, ValueError) as error:
            raise UsageError(f"{path} is damaged or cut short ({str(error) or 'its header ends early'}): fetch it again") from error


def _walk(content: mmap.mmap) -> None:
    walk = _Walk(content, "<")
    version = walk.number("I")
    if not version & 0xFFFF:  # written on a machine of the other byte order
        walk.order, version = ">", struct.unpack(">I", struct.pack("<I", version))[0]
    if version not in _VERSIONS:
        raise ValueError(f"it is of version {version}; versions {_VERSIONS[0]} and {_VERSIONS[1]} can be read")
    tensors, facts = walk.number("Q"), walk.number("Q")
    for _ in range(facts):
        walk.value(_TEXT)
        walk.value(walk.number("I"))
    for _ in range(tensors):
        walk.value(_TEXT)
        dims = walk.number("I")
        if dims > _MOST_DIMS:
            raise ValueError(f"a tensor has {dims} dims")
        count = math.prod(walk.number("Q") for _ in range(dims))
        walk.skip(4)  # its type
        # Even the smallest types hold 8 elements in a byte.
        if max(walk.number("Q"), count // 8) > len(content):
            raise EOFError
