"""Which of our own systems are measured: the main one, and those that `--also` names."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flexspec.bench.peers import PEERS
from flexspec.bench.report import PLAIN, SPECULATIVE
from flexspec.errors import UsageError
from flexspec.tree_shape import Tree, parse_tree

_NO_DRAFTERS = "none"
_ALLOWED = "give DRAFTERS, DRAFTERS@TREE or @TREE, for example suffix+ngram, prune:4@2,2,1 or @auto"


@dataclass(frozen=True, kw_only=True)
class SystemSpec:
    """One of our systems that draft.

    Attributes:
        name: as reports call it.
        drafters: as `flexspec.compile` takes SSMs.
        tree: the token tree; None for what `flexspec.compile` chooses.
    """

    name: str
    drafters: tuple[Any, ...]
    tree: Tree | None


def parse_system(text: str, *, main_drafters: Sequence[Any], main_tree: Tree | None) -> SystemSpec:
    """Read `DRAFTERS`, `DRAFTERS@TREE` or `@TREE`; DRAFTERS are joined by `+`, and what is left out is the main system's.

    An `@` or `+` in the name of a file or folder that exists is part of that name.

    Raises:
        UsageError: if it is none of these, or there are no drafters.
    """
    names, at, shape = text.rpartition("@")
    if not at or _exists(_split_drafters(text)[-1]):
        names, at, shape = text, "", ""
    drafters = tuple(_split_drafters(names)) if names.strip() else tuple(main_drafters)
    if not text.strip() or (at and not shape.strip()) or not all(drafters):
        raise UsageError(f"also={text!r} is not allowed: {_ALLOWED}")
    if not drafters:
        raise UsageError(f"also={text!r} needs drafters to fill its tree, and the main system has none: give DRAFTERS{text.strip()}")
    if _NO_DRAFTERS in drafters:
        raise UsageError(f"also={text!r} is not allowed: plain decoding is always measured; {_ALLOWED}")
    if text in (PLAIN, SPECULATIVE, *PEERS.names()):
        raise UsageError(f"also={text!r} is not allowed: reports call another system that; if it is a folder, give ./{text}")
    return SystemSpec(name=text, drafters=drafters, tree=parse_tree(shape) if at else main_tree)


def _split_drafters(names: str) -> list[str]:
    parts, drafters = names.split("+"), []
    while parts:
        lengths = range(len(parts), 1, -1)
        length = next((length for length in lengths if _exists("+".join(parts[:length]))), 1)
        drafters.append("+".join(parts[:length]).strip())
        parts = parts[length:]
    return drafters


def _exists(name: str) -> bool:
    return os.path.exists(os.path.expanduser(name.strip()))


def union_of_drafters(systems: Sequence[SystemSpec]) -> tuple[list[Any], list[list[int]]]:
    """The drafters of all systems, each once unless a system has it several times, and the places there of each system's."""
    union: list[Any] = []
    places: list[list[int]] = []
    for system in systems:
        found: list[int] = []
        for drafter in system.drafters:
            place = next((n for n, known in enumerate(union) if known == drafter and n not in found), len(union))
            if place == len(union):
                union.append(drafter)
            found.append(place)
        places.append(found)
    return union, places
