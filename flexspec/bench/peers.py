"""Other systems by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flexspec.bench import hf, llama_cpp, openvino
from flexspec.bench.measurement import System
from flexspec.bench.peer import PeerTask, PeerUnavailable
from flexspec.runtime.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One of them.

    Attributes:
        make: the system, or PeerUnavailable.
        packages: what it runs on, by the names that pip knows them by.
    """

    make: Callable[[PeerTask], System]
    packages: Sequence[str]


PEERS: Registry[Peer] = Registry("peer")
PEERS.register("hf", Peer(make=hf.hugging_face, packages=hf.PACKAGES))
PEERS.register("hf-lookup", Peer(make=hf.hugging_face_lookup, packages=hf.PACKAGES))
PEERS.register("hf-assisted", Peer(make=hf.hugging_face_assisted, packages=hf.PACKAGES))
PEERS.register("llama.cpp", Peer(make=llama_cpp.llama_cpp, packages=llama_cpp.PACKAGES))
PEERS.register("llama.cpp-q4_1", Peer(make=llama_cpp.llama_cpp_q4_1, packages=llama_cpp.PACKAGES))
PEERS.register("llama.cpp-lookup", Peer(make=llama_cpp.llama_cpp_lookup, packages=llama_cpp.PACKAGES))
PEERS.register("openvino", Peer(make=openvino.openvino, packages=openvino.PACKAGES))


def make_peers(names: Sequence[str], task: PeerTask) -> tuple[list[System], dict[str, str]]:
    """The peers that can be measured here, and why the others can't, by name.

    Raises:
        UsageError: if a name is unknown.
    """
    peers = {name: PEERS.get(name) for name in names}
    systems: list[System] = []
    left_out: dict[str, str] = {}
    for name, peer in peers.items():
        try:
            systems.append(peer.make(task))
        except PeerUnavailable as error:
            left_out[name] = str(error)
    return systems, left_out


def peer_packages(names: Sequence[str]) -> list[str]:
    """The packages whose versions belong to what was measured, each once; names of other systems than peers are passed over."""
    packages = [package for name in names if name in PEERS.names() for package in PEERS.get(name).packages]
    return list(dict.fromkeys(packages))
