"""Verifiers by name."""

from collections.abc import Callable

from flexspec.config import SamplingParams
from flexspec.errors import UsageError
from flexspec.runtime.registry import Registry
from flexspec.runtime.verifiers.base import Verifier
from flexspec.runtime.verifiers.mss import MssVerifier
from flexspec.runtime.verifiers.point_mass import PointMassVerifier
from flexspec.runtime.verifiers.traversal import TraversalVerifier
from flexspec.runtime.verifiers.walk import WalkVerifier
from flexspec.runtime.verifiers.without_replacement import WithoutReplacementVerifier

AUTO = "auto"

VERIFIERS: Registry[Callable[[], Verifier]] = Registry("verifier")
VERIFIERS.register("greedy", lambda: WalkVerifier("greedy"))
VERIFIERS.register("coupled", lambda: WalkVerifier("coupled"))
VERIFIERS.register("mss", MssVerifier)
VERIFIERS.register("without_replacement", WithoutReplacementVerifier)
VERIFIERS.register("point_mass", PointMassVerifier)
VERIFIERS.register("traversal", TraversalVerifier)


def make_verifier(name: str, params: SamplingParams) -> Verifier:
    """The verifier for a request.

    Args:
        name: a registered name, or `auto`: coupled. At temperature 0 all are the greedy walk.
        params: the request's sampling parameters.

    Raises:
        UsageError: if the name is unknown, or is `greedy` at a temperature above 0.
    """
    make = VERIFIERS.get("coupled" if name == AUTO else name, also=(AUTO,))
    if params.greedy:
        return WalkVerifier("greedy")
    if name == "greedy":
        others = ", ".join([AUTO, *(other for other in VERIFIERS.names() if other != name)])
        raise UsageError(f"verifier='greedy' does not sample at temperature={params.temperature}: give temperature=0, or one of {others}")
    return make()
