"""Models are compiled once for all tests of this folder."""

from compile_once import compile_once

__all__ = ["compile_once"]
