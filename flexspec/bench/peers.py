"""Other systems by name."""

from collections.abc import Callable, Sequence

from flexspec.bench.hf import hugging_face, hugging_face_lookup
from flexspec.bench.llama_cpp import llama_cpp
from flexspec.bench.measurement import System
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.runtime.registry import Registry

PEERS: Registry[Callable[[PeerTask], System]] = Registry("peer")
PEERS.register("hf", hugging_face)
PEERS.register("hf-lookup", hugging_face_lookup)
PEERS.register("llama.cpp", llama_cpp)


def make_peers(names: Sequence[str], task: PeerTask) -> tuple[list[System], dict[str, str]]:
    """The peers that can be measured here, and why the others can't, by name.

    Raises:
        UsageError: if a name is unknown.
    """
    factories = {name: PEERS.get(name) for name in names}
    systems: list[System] = []
    left_out: dict[str, str] = {}
    for name, factory in factories.items():
        try:
            systems.append(factory(task))
        except PeerUnavailable as error:
            left_out[name] = str(error)
    return systems, left_out
